#include "store/redis_tls.h"

#include <openssl/ssl.h>

#include <utility>

#include "base/read_file.h"

namespace kvcake {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

Result<std::shared_ptr<ssl::context>> LoadRedisTls(const RedisTlsFiles& files) {
  if (files.certificate.empty() != files.key.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "a store's tls-cert and tls-key go together");
  }
  for (const auto& [name, file] :
       {std::pair("tls-ca", files.ca), std::pair("tls-cert", files.certificate),
        std::pair("tls-key", files.key)}) {
    if (!file.empty()) RETURN_IF_ERROR(CheckReadable(name, file));
  }
  auto context = std::make_shared<ssl::context>(ssl::context::tls_client);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  context->set_verify_mode(ssl::verify_peer);
  error_code error;
  if (files.ca.empty()) {
    context->set_default_verify_paths(error);
  } else {
    context->load_verify_file(files.ca, error);
  }
  if (error) {
    return Fail(ErrorCode::kInvalidArgument,
                "tls-ca {} has no certificates of authorities in PEM: {}", files.ca,
                error.message());
  }
  if (files.certificate.empty()) return context;
  // A key with a passphrase is refused, where OpenSSL would ask the terminal for it.
  context->set_password_callback(
      [](size_t, ssl::context::password_purpose) { return std::string(); }, error);
  context->use_certificate_chain_file(files.certificate, error);
  if (error) {
    return Fail(ErrorCode::kInvalidArgument, "tls-cert {} is no chain of certificates in PEM: {}",
                files.certificate, error.message());
  }
  context->use_private_key_file(files.key, ssl::context::pem, error);
  if (error) {
    return Fail(ErrorCode::kInvalidArgument,
                "tls-key {} is not the private key of tls-cert, in PEM and without a passphrase: "
                "{}",
                files.key, error.message());
  }
  return context;
}

}  // namespace kvcake
