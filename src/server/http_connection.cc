#include "server/http_connection.h"

#include <poll.h>

#include "server/api_error.h"

namespace kvcake {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using net::ip::tcp;

namespace {

constexpr size_t kBufferMin = 4096;  // what is read ahead of a request
constexpr std::chrono::milliseconds kLookInterval{500};

std::chrono::milliseconds Millis(Seconds s) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(s);
}

HttpRequest ToRequest(http::request<http::string_body>* message) {
  HttpRequest request;
  request.method = std::string(message->method_string());
  const auto target = message->target();
  request.path = std::string(target.substr(0, target.find('?')));
  request.authorization = std::string((*message)[http::field::authorization]);
  request.body = std::move(message->body());
  return request;
}

}  // namespace

HttpServer::Connection::Connection(HttpServer& server, tcp::socket socket)
    : server_(server), stream_(std::move(socket)), look_timer_(server.context_) {}

HttpServer::Connection::~Connection() {
  ChargeBody(0);
  server_.Closed(this);
}

void HttpServer::Connection::Close() { stream_.close(); }

net::awaitable<void> HttpServer::Connection::Serve() {
  const auto self = shared_from_this();
  while (!server_.draining_ || buffer_.size() > 0) {
    idle_ = true;
    if (!co_await AwaitRequest()) break;
    idle_ = false;
    Parser parser;
    if (!co_await ReadHeader(&parser)) break;
    if (!co_await ReadBody(&parser)) break;
    stream_.expires_never();
    head_only_ = parser.get().method() == http::verb::head;
    HttpRequest request = ToRequest(&parser.get());
    gone_ = false;
    co_await server_.handler_(request, *this);
    StopWatching();
    ChargeBody(0);
    if (!keep_alive_ || gone_) break;
  }
  error_code error;
  stream_.socket().shutdown(tcp::socket::shutdown_send, error);
  Close();
}

// For as long as a connection may be idle.
net::awaitable<bool> HttpServer::Connection::AwaitRequest() {
  if (buffer_.size() > 0) co_return true;
  buffer_ = {};  // a connection that waits keeps no memory
  stream_.expires_after(Millis(server_.options_.idle_timeout));
  error_code error;
  const auto space = buffer_.prepare(kBufferMin);
  const size_t n =
      co_await stream_.async_read_some(space, net::redirect_error(net::use_awaitable, error));
  buffer_.commit(n);
  co_return !error;
}

net::awaitable<bool> HttpServer::Connection::ReadHeader(Parser* parser) {
  parser->header_limit(static_cast<uint32_t>(server_.options_.header_bytes_max));
  parser->body_limit(server_.options_.body_bytes_max);
  stream_.expires_after(Millis(server_.options_.header_timeout));
  error_code error;
  co_await http::async_read_header(stream_, buffer_, *parser,
                                   net::redirect_error(net::use_awaitable, error));
  version_ = parser->get().version();
  keep_alive_ = !error && parser->get().keep_alive() && !server_.draining_;
  if (!error) co_return true;
  if (error == http::error::header_limit) {
    co_await SendFailure(431, "the request's header is too long");
  } else if (error == http::error::body_limit) {
    co_await SendFailure(413, "the request's body is too long (--body-max)");
  } else if (error.category() == make_error_code(http::error::bad_method).category() &&
             error != http::error::end_of_stream && error != http::error::partial_message) {
    co_await SendFailure(400, "this is not HTTP: " + error.message());
  }
  co_return false;
}

net::awaitable<bool> HttpServer::Connection::ReadBody(Parser* parser) {
  const HttpOptions& options = server_.options_;
  if (parser->get().has_content_length() || parser->chunked()) {
    const auto length = parser->content_length();
    const uint64_t bytes = length ? *length : options.body_bytes_max;
    if (server_.bodies_bytes_ + bytes > options.bodies_bytes_max) {
      co_await SendFailure(503, "too many large requests at once: try again later");
      co_return false;
    }
    ChargeBody(bytes);
  }
  stream_.expires_after(Millis(options.body_timeout));
  error_code error;
  if (beast::iequals(parser->get()[http::field::expect], "100-continue")) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    co_await net::async_write(stream_, net::buffer(kContinue),
                              net::redirect_error(net::use_awaitable, error));
    if (error) co_return false;
  }
  co_await http::async_read(stream_, buffer_, *parser,
                            net::redirect_error(net::use_awaitable, error));
  if (!error) co_return true;
  if (error == http::error::body_limit) {
    co_await SendFailure(413, "the request's body is too long (--body-max)");
  } else if (error.category() == make_error_code(http::error::bad_method).category() &&
             error != http::error::partial_message) {
    co_await SendFailure(400, "this is not HTTP: " + error.message());
  }
  co_return false;
}

// What this connection counts for in the server's bodies_bytes_.
void HttpServer::Connection::ChargeBody(uint64_t bytes) {
  server_.bodies_bytes_ += bytes - charged_;
  charged_ = bytes;
}

// Of a request that was not read to its end: nothing can follow it.
net::awaitable<void> HttpServer::Connection::SendFailure(int status, std::string_view message) {
  keep_alive_ = false;
  HttpResponse response{.status = status};
  response.body = ErrorBody({.status = status, .message = std::string(message)});
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  co_await Send(std::move(response));
  // What the client still sends is read and dropped for a moment: with bytes left unread, closing
  // would take the answer away from it.
  error_code error;
  stream_.socket().shutdown(tcp::socket::shutdown_send, error);
  stream_.expires_after(std::chrono::seconds(1));
  std::array<char, 4096> dropped;
  for (int i = 0; !error && i < 1024; ++i) {
    co_await stream_.async_read_some(net::buffer(dropped),
                                     net::redirect_error(net::use_awaitable, error));
  }
}

template <typename Body>
void HttpServer::Connection::SetHead(const HttpResponse& response,
                                     http::response<Body>* message) const {
  message->version(version_);
  message->result(static_cast<unsigned>(response.status));
  message->set(http::field::server, "kvcake");
  if (!response.content_type.empty()) {
    message->set(http::field::content_type, response.content_type);
  }
  for (const auto& [name, value] : response.headers) message->set(name, value);
}

net::awaitable<bool> HttpServer::Connection::Send(HttpResponse response) {
  StopWatching();
  if (server_.draining_) keep_alive_ = false;
  http::response<http::string_body> message;
  SetHead(response, &message);
  message.keep_alive(keep_alive_);
  message.body() = std::move(response.body);
  message.prepare_payload();
  if (head_only_) message.body().clear();
  stream_.expires_after(Millis(server_.options_.idle_timeout));
  error_code error;
  co_await http::async_write(stream_, message, net::redirect_error(net::use_awaitable, error));
  gone_ = gone_ || error.failed();
  co_return !gone_;
}

net::awaitable<bool> HttpServer::Connection::StartStream(HttpResponse head) {
  chunked_ = version_ >= 11;  // before, a body without a length ends with the connection
  if (!chunked_ || server_.draining_) keep_alive_ = false;
  http::response<http::empty_body> message;
  SetHead(head, &message);
  message.chunked(chunked_);
  message.keep_alive(keep_alive_);
  http::response_serializer<http::empty_body> serializer(message);
  stream_.expires_after(Millis(server_.options_.idle_timeout));
  error_code error;
  co_await http::async_write_header(stream_, serializer,
                                    net::redirect_error(net::use_awaitable, error));
  gone_ = gone_ || error.failed();
  co_return !gone_;
}

net::awaitable<bool> HttpServer::Connection::Write(std::string_view piece) {
  if (gone_) co_return false;
  if (piece.empty()) co_return true;  // a chunk of nothing would be the last
  stream_.expires_after(Millis(server_.options_.idle_timeout));
  error_code error;
  if (chunked_) {
    const auto chunk = http::make_chunk(net::buffer(piece));
    co_await net::async_write(stream_, chunk, net::redirect_error(net::use_awaitable, error));
  } else {
    const auto bytes = net::buffer(piece);
    co_await net::async_write(stream_, bytes, net::redirect_error(net::use_awaitable, error));
  }
  stream_.expires_never();
  gone_ = gone_ || error.failed();
  co_return !gone_;
}

net::awaitable<bool> HttpServer::Connection::EndStream() {
  StopWatching();
  if (gone_) co_return false;
  if (!chunked_) co_return true;
  stream_.expires_after(Millis(server_.options_.idle_timeout));
  error_code error;
  const auto last = http::make_chunk_last();
  co_await net::async_write(stream_, last, net::redirect_error(net::use_awaitable, error));
  gone_ = gone_ || error.failed();
  co_return !gone_;
}

void HttpServer::Connection::WatchClient(std::shared_ptr<Signal> signal) {
  watcher_ = std::move(signal);
  stream_.socket().async_wait(tcp::socket::wait_read, [weak = weak_from_this()](error_code error) {
    if (const auto self = weak.lock(); self && !error) self->Watched();
  });
}

// Something has come: the end, or the client's next request, which hides the end from then on but
// for a look now and then.
void HttpServer::Connection::Watched() {
  if (!watcher_) return;
  if (client_gone()) return watcher_->Notify();
  look_timer_.expires_after(kLookInterval);
  look_timer_.async_wait([weak = weak_from_this()](error_code error) {
    if (const auto self = weak.lock(); self && !error) self->Watched();
  });
}

void HttpServer::Connection::StopWatching() {
  if (!watcher_) return;
  watcher_.reset();
  look_timer_.cancel();
  error_code error;
  stream_.socket().cancel(error);  // nothing but the wait is under way
}

// It has closed its side, or nothing goes through any more.
bool HttpServer::Connection::client_gone() {
  if (gone_) return true;
  pollfd fd{.fd = stream_.socket().native_handle(), .events = POLLRDHUP, .revents = 0};
  gone_ = fd.fd < 0 || (poll(&fd, 1, 0) > 0 && fd.revents != 0);
  return gone_;
}

}  // namespace kvcake
