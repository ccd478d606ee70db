// The bytes of a connection, in TLS or plain: the one place that knows the difference.
#pragma once

#include <boost/beast/core/tcp_stream.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "server/asio.h"

// clang-format off
#include <boost/beast/ssl/ssl_stream.hpp>
// clang-format on

namespace kvcake {

// As Asio's composed operations want a stream. Time-outs are those of tcp().
class HttpStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;

  // `tls` outlives it; null: plain.
  HttpStream(boost::asio::ip::tcp::socket socket, boost::asio::ssl::context* tls)
      : tcp_(std::move(socket)) {
    if (tls != nullptr) tls_.emplace(tcp_, *tls);
  }
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  executor_type get_executor() { return tcp_.get_executor(); }
  boost::beast::tcp_stream& tcp() { return tcp_; }
  boost::asio::ip::tcp::socket& socket() { return tcp_.socket(); }
  bool encrypted() const { return tls_.has_value(); }

  template <typename Buffers, typename Token>
  BOOST_ASIO_INITFN_RESULT_TYPE(Token, void(boost::system::error_code, size_t))
  async_read_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_read_some(buffers, std::forward<Token>(token));
    return tcp_.async_read_some(buffers, std::forward<Token>(token));
  }
  template <typename Buffers, typename Token>
  BOOST_ASIO_INITFN_RESULT_TYPE(Token, void(boost::system::error_code, size_t))
  async_write_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_write_some(buffers, std::forward<Token>(token));
    return tcp_.async_write_some(buffers, std::forward<Token>(token));
  }

  // False: the client speaks no TLS that is wanted, or not in time.
  boost::asio::awaitable<bool> Handshake();
  // Says that nothing follows, so that the client knows an end from a cut.
  boost::asio::awaitable<void> EndTls();

 private:
  boost::beast::tcp_stream tcp_;
  std::optional<boost::beast::ssl_stream<boost::beast::tcp_stream&>> tls_;
};

}  // namespace kvcake
