#include "comm/rank_tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/check.h"
#include "base/file_mode.h"
#include "base/read_file.h"

namespace kvcake {
namespace {

std::string LastError() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "it cannot be read" : reason;
}

Status CheckGiven(const RankTlsFiles& files) {
  for (const auto& [flag, file] :
       {std::pair("--tls-cert", files.certificate), std::pair("--tls-key", files.key),
        std::pair("--tls-ca", files.ca)}) {
    if (file.empty()) {
      return Fail(ErrorCode::kInvalidArgument,
                  "--tls-cert, --tls-key and --tls-ca are given together: {} is missing", flag);
    }
    RETURN_IF_ERROR(CheckReadable(flag, file));
  }
  return {};
}

// A key with a passphrase is refused, where OpenSSL would ask the terminal for it.
int NoPassphrase(char*, int, int, void*) { return 0; }

Status LoadFiles(SSL_CTX* context, const RankTlsFiles& files) {
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    return Fail(ErrorCode::kInvalidArgument,
                "--tls-cert {} is no chain of PEM certificates that can be used: {}",
                files.certificate, LastError());
  }
  if (const std::string fault = ModeFault(files.key); !fault.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "--tls-key {} {}", files.key, fault);
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return Fail(ErrorCode::kInvalidArgument,
                "--tls-key {} is not the private key of --tls-cert {}, in PEM and without a "
                "passphrase: {}",
                files.key, files.certificate, LastError());
  }
  if (SSL_CTX_load_verify_locations(context, files.ca.c_str(), nullptr) != 1) {
    return Fail(ErrorCode::kInvalidArgument,
                "--tls-ca {} has no PEM certificate of an authority: {}", files.ca, LastError());
  }
  return {};
}

}  // namespace

Result<RankTls> RankTls::Load(const RankTlsFiles& files) {
  RankTls tls;
  if (files.certificate.empty() && files.key.empty() && files.ca.empty()) return tls;
  RETURN_IF_ERROR(CheckGiven(files));
  tls.context_ = {SSL_CTX_new(TLS_method()), SSL_CTX_free};
  SSL_CTX* const context = tls.context_.get();
  CHECK(context != nullptr);
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context, 0);  // nobody resumes a session
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_default_passwd_cb(context, NoPassphrase);
  RETURN_IF_ERROR(LoadFiles(context, files));
  return tls;
}

}  // namespace kvcake
