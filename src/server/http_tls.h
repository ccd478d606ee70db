// TLS as the server speaks it.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "server/asio.h"

// clang-format off
#include <boost/asio/ssl/context.hpp>
// clang-format on

namespace kvcake {

// TLS 1.2 and 1.3, with the chain of certificates and the private key of PEM files.
// kInvalidArgument names the file that is not as it must be. Warns of a key that others than its
// owner may read.
[[nodiscard]] Result<std::shared_ptr<boost::asio::ssl::context>> LoadTls(
    const std::string& certificate_file, const std::string& key_file);

}  // namespace kvcake
