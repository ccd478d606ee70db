#include "server/http_tls.h"

#include <openssl/ssl.h>
#include <spdlog/spdlog.h>

#include "base/file_mode.h"
#include "base/read_file.h"

namespace kvcake {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

namespace {

void WarnOfReaders(const std::string& key_file) {
  const std::string fault = ModeFault(key_file);
  if (!fault.empty()) spdlog::warn("--ssl-keyfile {} {}", key_file, fault);
}

}  // namespace

Result<std::shared_ptr<ssl::context>> LoadTls(const std::string& certificate_file,
                                              const std::string& key_file) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);  // idle connections keep less memory
  error_code error;
  // A key with a passphrase is refused, where OpenSSL would ask the terminal for it.
  context->set_password_callback(
      [](size_t, ssl::context::password_purpose) { return std::string(); }, error);
  RETURN_IF_ERROR(CheckReadable("--ssl-certfile", certificate_file));
  RETURN_IF_ERROR(CheckReadable("--ssl-keyfile", key_file));
  context->use_certificate_chain_file(certificate_file, error);
  if (error) {
    return Fail(ErrorCode::kInvalidArgument,
                "--ssl-certfile {} is no chain of PEM certificates that can be used: {}",
                certificate_file, error.message());
  }
  context->use_private_key_file(key_file, ssl::context::pem, error);
  if (error) {
    return Fail(ErrorCode::kInvalidArgument,
                "--ssl-keyfile {} is not the private key of --ssl-certfile {}, in PEM and without "
                "a passphrase: {}",
                key_file, certificate_file, error.message());
  }
  WarnOfReaders(key_file);
  return context;
}

}  // namespace kvcake
