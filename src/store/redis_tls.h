// What `rediss://` needs to know of certificates.
#pragma once

#include <memory>

#include "base/status.h"
#include "store/redis_asio.h"
#include "store/redis_place.h"

namespace kvcake {

// TLS 1.2 and 1.3, which believe nobody that the authorities have not signed.
// kInvalidArgument, with the option and the file that cannot be used.
Result<std::shared_ptr<boost::asio::ssl::context>> LoadRedisTls(const RedisTlsFiles& files);

}  // namespace kvcake
