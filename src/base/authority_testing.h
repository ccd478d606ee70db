// Certificates as an operator makes them with openssl, for tests.
#pragma once

#include <string>

#include "base/temp_dir_testing.h"

struct evp_pkey_st;
struct x509_st;

namespace kvcake::testing_util {

// An authority with files of its own, and what it signs; files go with it.
class Authority {
 public:
  Authority();
  ~Authority();
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  struct Files {
    std::string certificate, key, ca;
  };
  // When a certificate is valid, in seconds from now.
  struct Validity {
    long from_s = -3600;
    long until_s = 48 * 3600;
  };
  // A new one's, that believes this authority. `name` is a host's, or its address.
  Files Issue(const std::string& name) const { return Issue(name, Validity()); }
  Files Issue(const std::string& name, const Validity& validity) const;

 private:
  const TempDir dir_;
  evp_pkey_st* const key_;
  x509_st* const certificate_;
};

}  // namespace kvcake::testing_util
