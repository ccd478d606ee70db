// Certificates as a cluster's operator makes them with openssl, for tests.
#pragma once

#include <memory>
#include <string>

#include "base/temp_dir_testing.h"
#include "comm/rank_tls.h"

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

  // A new rank's, that believes this authority.
  RankTlsFiles Issue(const std::string& name) const;
  // The same, loaded.
  RankTls IssueLoaded(const std::string& name) const;

 private:
  const TempDir dir_;
  evp_pkey_st* const key_;
  x509_st* const certificate_;
};

}  // namespace kvcake::testing_util
