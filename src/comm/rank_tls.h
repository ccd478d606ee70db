// TLS between ranks: each shows a certificate that the cluster's own authority has signed, and asks
// the other end for one.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

struct ssl_ctx_st;

namespace kvcake {

// PEM files: this rank's certificate with those between it and the authority, its private key, and
// the certificates of authorities whose ranks are believed.
struct RankTlsFiles {
  std::string certificate, key, ca;
};

class RankTls {
 public:
  // None: connections go in the clear.
  RankTls() = default;
  // TLS 1.2 and 1.3; none where no file is named. kInvalidArgument names the flag that is missing,
  // or the file that cannot be used, with the remedy; a key that others than its owner may use is
  // refused.
  static Result<RankTls> Load(const RankTlsFiles& files);

  bool empty() const { return context_ == nullptr; }
  ssl_ctx_st* context() const { return context_.get(); }

 private:
  std::shared_ptr<ssl_ctx_st> context_;
};

}  // namespace kvcake
