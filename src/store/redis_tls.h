// What `rediss://` needs to know of certificates.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "store/redis_asio.h"

namespace kvcake {

struct RedisTlsFiles {
  std::string ca = {};                     // whom to believe, in PEM; empty: whom the system does
  std::string certificate = {}, key = {};  // this side's, for servers that ask for one
};

// TLS 1.2 and 1.3, which believe nobody that the authorities have not signed.
// kInvalidArgument, with the option and the file that cannot be used.
Result<std::shared_ptr<boost::asio::ssl::context>> LoadRedisTls(const RedisTlsFiles& files);

}  // namespace kvcake
