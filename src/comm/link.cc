#include "comm/link.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/ssl/error.hpp>
#include <cerrno>

#include "base/check.h"

namespace kvcake {

namespace net = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kWriteMax = 256 << 10;  // before others have their turn
constexpr const char* kTlsFlags = "--tls-cert, --tls-key and --tls-ca";

// ---- OpenSSL's view of a socket: its own would have a signal end the process when the other end
// has gone, and wait where the descriptor is not set to do otherwise.
int FdOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

bool MayTryAgain() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int BioSend(BIO* bio, const char* data, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(FdOf(bio), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && MayTryAgain()) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int BioReceive(BIO* bio, char* data, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t received = recv(FdOf(bio), data, bytes, MSG_DONTWAIT);
  if (received < 0 && MayTryAgain()) BIO_set_retry_read(bio);
  return static_cast<int>(received);
}

long BioControl(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* NewSocketBio(int fd) {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "a rank's socket");
    CHECK(made != nullptr && BIO_meth_set_write(made, BioSend) == 1 &&
          BIO_meth_set_read(made, BioReceive) == 1 && BIO_meth_set_ctrl(made, BioControl) == 1);
    return made;
  }();
  BIO* bio = BIO_new(method);
  CHECK(bio != nullptr);
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  return bio;
}

int FamilyOf(int fd) {
  sockaddr_storage name = {};
  socklen_t length = sizeof(name);
  CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0);
  return name.ss_family;
}

// Whether a certificate is fine but for its dates.
bool IsOfTime(long verdict) {
  return verdict == X509_V_ERR_CERT_HAS_EXPIRED || verdict == X509_V_ERR_CERT_NOT_YET_VALID;
}

int ReasonOf(error_code error) { return ERR_GET_REASON(static_cast<unsigned>(error.value())); }

}  // namespace

void SslFree::operator()(ssl_st* ssl) const { SSL_free(ssl); }

Link::Link(Socket socket, const RankTls& tls, Role role) : socket_(std::move(socket)) {
  if (tls.empty()) return;
  tls_.reset(SSL_new(tls.context()));
  CHECK(tls_ != nullptr);
  BIO* bio = NewSocketBio(socket_.native_handle());
  SSL_set_bio(tls_.get(), bio, bio);
  role == Role::kCalls ? SSL_set_connect_state(tls_.get()) : SSL_set_accept_state(tls_.get());
}

Link::Link(net::io_context& context, RawLink raw)
    : socket_(context, Protocol(FamilyOf(raw.fd), 0), raw.fd),
      tls_(std::move(raw.tls)),
      shaken_(true) {}

Link::~Link() = default;

Link::Step Link::Try(const Action& action) {
  if (closed_) return {.error = net::error::operation_aborted};
  if (action.kind == Action::kHandshake) {
    ERR_clear_error();
    const int result = SSL_do_handshake(tls_.get());
    shaken_ = result == 1;
    return shaken_ ? Step{} : Failed(result);
  }
  const bool reads = action.kind == Action::kRead;
  const size_t most = reads ? action.bytes : std::min(action.bytes, kWriteMax);
  Step step;
  while (step.bytes < most) {
    ERR_clear_error();
    char* const at = static_cast<char*>(action.data) + step.bytes;
    size_t bytes = 0;
    const int result = reads ? SSL_read_ex(tls_.get(), at, action.bytes - step.bytes, &bytes)
                             : SSL_write_ex(tls_.get(), at, action.bytes - step.bytes, &bytes);
    if (result != 1) return step.bytes > 0 ? step : Failed(result);
    step.bytes += bytes;
  }
  return step;
}

Link::Step Link::Failed(int result) {
  const int system_error = errno;
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return {.waits_for = Socket::wait_read};
    case SSL_ERROR_WANT_WRITE:
      return {.waits_for = Socket::wait_write};
    case SSL_ERROR_ZERO_RETURN:
      return {.error = net::error::eof};
    case SSL_ERROR_SYSCALL:
      if (system_error == 0) return {.error = net::error::eof};
      return {.error = error_code(system_error, boost::system::system_category())};
    default: {
      const error_code error(static_cast<int>(ERR_get_error()), net::error::get_ssl_category());
      const bool ended = ReasonOf(error) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
      return {.error = ended ? error_code(net::error::eof) : error};
    }
  }
}

bool Link::IsOfTls(error_code error) { return error.category() == net::error::get_ssl_category(); }

bool Link::IsOfNoTls(error_code error) {
  if (!IsOfTls(error)) return false;
  const int reason = ReasonOf(error);
  return reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
         reason == SSL_R_PACKET_LENGTH_TOO_LONG;
}

std::string Link::WhyNot(error_code error) const {
  if (!IsOfTls(error)) {
    if (tls_ && !shaken_ && error != net::error::operation_aborted) {
      return fmt::format(
          "it ended the connection in the midst of TLS' handshake: if it has none, give it {}, too",
          kTlsFlags);
    }
    return error == net::error::eof ? "it closed the connection" : error.message();
  }
  if (const long verdict = SSL_get_verify_result(tls_.get()); verdict != X509_V_OK) {
    return fmt::format("{}: {}",
                       IsOfTime(verdict) ? "its certificate, or its authority's, is not valid now"
                                         : "no authority of --tls-ca has signed its certificate",
                       X509_verify_cert_error_string(verdict));
  }
  if (IsOfNoTls(error)) return fmt::format("it speaks no TLS: give it {}, too", kTlsFlags);
  switch (ReasonOf(error)) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return "it has shown no certificate: give it --tls-cert and --tls-key";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:  // another authority of the same name
      return "no authority of its --tls-ca has signed this one's --tls-cert";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "by its clock this one's --tls-cert, or its authority's, has expired";
    default:
      return "TLS: " + error.message();
  }
}

void Link::SendAtOnce(std::span<const std::byte> bytes) {
  if (tls_) {
    (void)Try({Action::kWrite, const_cast<std::byte*>(bytes.data()), bytes.size()});
  } else {
    (void)send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

void Link::EndSending() {
  error_code gone;
  socket_.shutdown(Socket::shutdown_send, gone);
}

void Link::Close() {
  closed_ = true;
  error_code ignored;
  socket_.close(ignored);
}

RawLink Link::Release() { return {.fd = socket_.release(), .tls = std::move(tls_)}; }

}  // namespace kvcake
