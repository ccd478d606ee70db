#include "server/http_connection.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <sstream>

namespace kvcake {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using net::ip::tcp;

namespace {

constexpr size_t kBufferMin = 4096;       // what is read ahead of a request
constexpr size_t kBufferRest = 64 << 10;  // of the buffer, besides a header
constexpr size_t kDroppedMax = 4 << 20;   // bytes read for nothing, of a client that is refused
constexpr std::chrono::milliseconds kLookInterval{500};
constexpr std::chrono::seconds kLinger{1};

std::chrono::milliseconds Millis(Seconds s) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(s);
}

std::string_view Field(const RequestHead& head, http::field field) {
  const auto value = head[field];
  return {value.data(), value.size()};
}

bool IsHttpError(const error_code& error) {
  return error.category() == make_error_code(http::error::bad_method).category();
}

std::string Written(const AnswerHead& head) {
  std::ostringstream text;
  text << head.base();
  return std::move(text).str();
}

// What to say of a request that could not be read to its end; 499 where nobody listens.
ApiError ReadFailure(const error_code& error) {
  if (error == http::error::header_limit) {
    return {.status = 431, .message = "the request's header is too long"};
  }
  if (error == http::error::buffer_overflow) {
    return {.status = 431, .message = "the header of a chunk, or the trailers, are too long"};
  }
  if (error == http::error::body_limit) {
    return {.status = 413, .message = "the request's body is too long (--body-max)"};
  }
  if (!IsHttpError(error) || error == http::error::end_of_stream ||
      error == http::error::partial_message) {
    return {.status = 499, .message = "the client has gone"};
  }
  return {.status = 400, .message = "this is not HTTP: " + error.message()};
}

}  // namespace

HttpServer::Connection::Connection(HttpServer& server, Listener& listener, ConnectionTable::Id id,
                                   tcp::socket socket)
    : server_(server),
      listener_(listener),
      id_(id),
      stream_(std::move(socket), server.options_.tls.get()),
      look_timer_(server.context_),
      buffer_(server.options_.header_bytes_max + kBufferRest) {
  error_code error;  // later calls have it too
  stream_.socket().non_blocking(true, error);
  client_ = stream_.socket().remote_endpoint(error).address().to_string();
}

HttpServer::Connection::~Connection() {
  ChargeBody(0);
  server_.Closed(listener_, id_);
}

void HttpServer::Connection::Close() { stream_.tcp().close(); }

net::awaitable<void> HttpServer::Connection::Serve() {
  const auto self = shared_from_this();
  if (!co_await Handshake()) co_return;
  while (!server_.draining_ || buffer_.size() > 0) {
    idle_ = true;
    listener_.table.SetWaiting(id_, true);  // until it is known what is asked, however slowly
    if (!co_await AwaitRequest()) break;
    idle_ = false;
    if (!co_await ReadHeader()) break;
    listener_.table.SetWaiting(id_, false);
    gone_ = false;
    co_await server_.handler_->Handle(request_, *this);
    StopWatching();
    ChargeBody(0);
    if (!parser_->is_done() && !gone_) co_await Linger();
    if (!keep_alive_ || gone_) break;
    parser_.reset();
  }
  stream_.tcp().expires_after(kLinger);
  co_await stream_.EndTls();
  error_code error;
  stream_.socket().shutdown(tcp::socket::shutdown_send, error);
  Close();
}

// Within the time that a header has.
net::awaitable<bool> HttpServer::Connection::Handshake() {
  if (!stream_.encrypted()) co_return true;
  stream_.tcp().expires_after(Millis(server_.options_.header_timeout));
  const bool agreed = co_await stream_.Handshake();
  if (!agreed) ++server_.handshakes_failed_;
  co_return agreed;
}

// Some clients end a body with one, which RFC 9112, 2.2, has a server ignore. Whether more has come
// than these: half of one may be on its way.
bool HttpServer::Connection::DropEmptyLines() {
  const auto bytes = buffer_.data();
  std::string_view text(static_cast<const char*>(bytes.data()), bytes.size());
  while (text.starts_with("\r\n")) text.remove_prefix(2);
  buffer_.consume(bytes.size() - text.size());
  return !text.empty() && text != "\r";
}

// For as long as a connection may be idle.
net::awaitable<bool> HttpServer::Connection::AwaitRequest() {
  bool begun = DropEmptyLines();
  if (begun) co_return true;
  parser_.reset();  // a connection that waits keeps no memory
  buffer_.shrink_to_fit();
  stream_.tcp().expires_after(Millis(server_.options_.idle_timeout));
  error_code error;
  while (!error && !begun) {
    const auto space = buffer_.prepare(kBufferMin);
    const size_t n =
        co_await stream_.async_read_some(space, net::redirect_error(net::use_awaitable, error));
    buffer_.commit(n);
    begun = DropEmptyLines();
  }
  co_return !error;
}

net::awaitable<bool> HttpServer::Connection::ReadHeader() {
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(server_.options_.header_bytes_max));
  parser_->body_limit(server_.options_.body_bytes_max);
  stream_.tcp().expires_after(Millis(server_.options_.header_timeout));
  error_code error;
  co_await http::async_read_header(stream_, buffer_, *parser_,
                                   net::redirect_error(net::use_awaitable, error));
  version_ = parser_->get().version();
  keep_alive_ = !error && parser_->get().keep_alive();
  request_ = {};
  if (parser_->is_header_done()) request_ = ToRequest(parser_->get());
  if (request_.id.empty()) request_.id = server_.NextRequestId();
  request_.client = client_;
  request_.admin = listener_.admin;
  sent_bytes_ = 0;
  head_only_ = !error && parser_->get().method() == http::verb::head;
  allowed_origin_ = server_.origin_rule_.Answer(Field(parser_->get(), http::field::origin));
  std::optional<ApiError> failure;
  if (error) {
    failure = ReadFailure(error);
  } else {
    failure = CheckHead();
  }
  if (!failure) co_return true;
  if (failure->status != 499) co_await Refuse(std::move(*failure));
  co_return false;
}

std::optional<ApiError> HttpServer::Connection::CheckHead() const {
  const RequestHead& head = parser_->get();
  if (auto error = CheckFraming(head)) return error;
  // HTTP/1.0, which may have no Host, is no browser's.
  if (head.count(http::field::host) == 0) return std::nullopt;
  return listener_.host_rule.Check(Field(head, http::field::host));
}

net::awaitable<ApiResult<std::string>> HttpServer::Connection::ReadBody() {
  const auto fail = [&](ApiError failure) {
    gone_ = failure.status == 499;
    parser_->get().body() = {};
    ChargeBody(0);
    return tl::unexpected<ApiError>(std::move(failure));
  };
  const HttpOptions& options = server_.options_;
  stream_.tcp().expires_after(Millis(options.body_timeout));
  error_code error;
  const bool asks = version_ >= 11 &&  // HTTP/1.0 knows no such answer
                    beast::iequals(parser_->get()[http::field::expect], "100-continue");
  if (!parser_->is_done() && asks) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    co_await net::async_write(stream_, net::buffer(kContinue),
                              net::redirect_error(net::use_awaitable, error));
  }
  parser_->eager(true);
  while (!error && !parser_->is_done()) {
    co_await http::async_read_some(stream_, buffer_, *parser_,
                                   net::redirect_error(net::use_awaitable, error));
    ChargeBody(parser_->get().body().size());
    if (server_.bodies_bytes_ > options.bodies_bytes_max) {
      co_return fail(
          {.status = 503,
           .message = "too many large requests at once: try again later (--bodies-max)"});
    }
  }
  if (error) co_return fail(ReadFailure(error));
  co_return std::move(parser_->get().body());
}

// What this connection counts for in the server's bodies_bytes_.
void HttpServer::Connection::ChargeBody(uint64_t bytes) {
  server_.bodies_bytes_ += bytes - charged_;
  charged_ = bytes;
}

// What is no request.
net::awaitable<void> HttpServer::Connection::Refuse(ApiError error) {
  keep_alive_ = false;
  HttpResponse response{.status = error.status};
  response.body = ErrorBody(error);
  co_await Send(std::move(response));
  server_.handler_->Refused(request_, error, sent_bytes_);
  co_await Linger();
}

// What the client still sends is read and dropped for a moment: with bytes left unread, closing
// would take the answer away from it.
net::awaitable<void> HttpServer::Connection::Linger() {
  stream_.tcp().expires_after(kLinger);
  co_await stream_.EndTls();
  error_code error;
  stream_.socket().shutdown(tcp::socket::shutdown_send, error);
  stream_.tcp().expires_after(kLinger);
  std::array<char, 4096> dropped;
  for (size_t bytes = 0; !error && bytes < kDroppedMax;) {
    bytes += co_await stream_.tcp().async_read_some(net::buffer(dropped),
                                                    net::redirect_error(net::use_awaitable, error));
  }
}

void HttpServer::Connection::SetHead(const HttpResponse& response, AnswerHead* message) const {
  message->version(version_);
  message->result(static_cast<unsigned>(response.status));
  message->set(http::field::server, "kvcake");
  message->set("X-Request-Id", request_.id);
  if (!response.content_type.empty()) {
    message->set(http::field::content_type, response.content_type);
  }
  if (!allowed_origin_.empty()) {
    message->set(http::field::access_control_allow_origin, allowed_origin_);
  }
  if (server_.origin_rule_.varies()) message->set(http::field::vary, "Origin");
  for (const auto& [name, value] : response.headers) message->set(name, value);
}

net::awaitable<bool> HttpServer::Connection::Send(HttpResponse response) {
  StopWatching();
  if (server_.draining_ || !parser_->is_done()) keep_alive_ = false;
  AnswerHead message;
  SetHead(response, &message);
  message.keep_alive(keep_alive_);
  if (response.status != 204) message.content_length(response.body.size());  // it has none
  if (head_only_) response.body.clear();
  const std::string head = Written(message);
  const std::array<net::const_buffer, 2> buffers = {net::buffer(head), net::buffer(response.body)};
  const size_t taken = co_await WriteAll(buffers);
  sent_bytes_ = taken - std::min(taken, head.size());
  co_return !gone_;
}

net::awaitable<bool> HttpServer::Connection::StartStream(HttpResponse response) {
  chunked_ = version_ >= 11;  // before, a body without a length ends with the connection
  if (!chunked_ || server_.draining_ || !parser_->is_done()) keep_alive_ = false;
  AnswerHead message;
  SetHead(response, &message);
  message.chunked(chunked_);
  message.keep_alive(keep_alive_);
  const std::string head = Written(message);
  co_await WriteAll(net::buffer(head));
  co_return !gone_;
}

net::awaitable<bool> HttpServer::Connection::Write(std::string_view piece) {
  if (gone_) co_return false;
  if (piece.empty()) co_return true;  // a chunk of nothing would be the last
  size_t taken = 0;
  if (chunked_) {
    taken = co_await WriteAll(http::make_chunk(net::buffer(piece)));
  } else {
    taken = co_await WriteAll(net::buffer(piece));
  }
  sent_bytes_ += std::min(taken, piece.size());  // a chunk's frame is not of the body
  co_return !gone_;
}

// How many bytes the client has taken: all of them, or it has gone. One that takes any has as long
// again for the rest, so only who reads nothing is hung up on. What the kernel takes at once does
// not wait for its turn behind all other streams.
template <typename Buffers>
net::awaitable<size_t> HttpServer::Connection::WriteAll(const Buffers& buffers) {
  error_code error;
  size_t taken = 0;
  if (!stream_.encrypted()) taken = stream_.socket().write_some(buffers, error);
  if (error == net::error::would_block) error = {};
  const size_t all = beast::buffer_bytes(buffers);
  beast::buffers_suffix<Buffers> rest(buffers);
  rest.consume(taken);
  while (!error && taken < all) {
    stream_.tcp().expires_after(Millis(server_.options_.idle_timeout));
    const size_t some =
        co_await stream_.async_write_some(rest, net::redirect_error(net::use_awaitable, error));
    rest.consume(some);
    taken += some;
  }
  gone_ = gone_ || error.failed();
  co_return taken;
}

net::awaitable<bool> HttpServer::Connection::EndStream() {
  StopWatching();
  if (gone_) co_return false;
  if (!chunked_) co_return true;
  co_await WriteAll(http::make_chunk_last());
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
