#include "server/http_stream.h"

namespace kvcake {

namespace net = boost::asio;
using boost::system::error_code;

net::awaitable<bool> HttpStream::Handshake() {
  if (!tls_) co_return true;
  error_code error;
  co_await tls_->async_handshake(net::ssl::stream_base::server,
                                 net::redirect_error(net::use_awaitable, error));
  co_return !error;
}

net::awaitable<void> HttpStream::EndTls() {
  if (!tls_) co_return;
  error_code error;
  co_await tls_->async_shutdown(net::redirect_error(net::use_awaitable, error));
}

}  // namespace kvcake
