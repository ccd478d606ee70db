#include "server/http_server.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include "server/http_connection.h"

namespace kvcake {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

namespace {

constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kLastWords{2};  // for answers to what on_late has given up

}  // namespace

void Signal::Notify() {
  if (posted_.exchange(true)) return;
  net::post(context_, [self = shared_from_this()] {
    self->posted_ = false;
    self->Wake();
  });
}

void Signal::Wake() {
  ready_ = true;
  timer_.cancel();
}

void SignalBatch::Notify() {
  if (first_.empty() && signals_.empty()) return;
  net::post(context_, [first = std::move(first_), signals = std::move(signals_)] {
    for (const auto& signal : first) signal->Wake();
    for (const auto& signal : signals) signal->Wake();
  });
  first_.clear();
  signals_.clear();
}

net::awaitable<bool> Signal::Wait(TimePoint deadline) {
  if (!ready_) {
    if (deadline == TimePoint::max()) {
      timer_.expires_at(std::chrono::steady_clock::time_point::max());
    } else {
      timer_.expires_at(
          std::chrono::time_point_cast<std::chrono::steady_clock::duration>(deadline));
    }
    error_code error;
    co_await timer_.async_wait(net::redirect_error(net::use_awaitable, error));
  }
  co_return std::exchange(ready_, false);
}

HttpServer::HttpServer(net::io_context& context, HttpOptions options)
    : context_(context),
      options_(std::move(options)),
      acceptor_(context),
      signals_(context),
      drain_timer_(context) {}

HttpServer::~HttpServer() = default;

Result<uint16_t> HttpServer::Listen() {
  error_code error;
  const auto fail = [&](const char* what) {
    return Fail(ErrorCode::kIo, "cannot {} --host {} --port {}: {}", what, options_.host,
                options_.port, error.message());
  };
  const net::ip::address address =
      net::ip::make_address(options_.host == "localhost" ? "127.0.0.1" : options_.host, error);
  if (error) return fail("understand as an address");
  const tcp::endpoint endpoint(address, options_.port);
  acceptor_.open(endpoint.protocol(), error);
  if (error) return fail("open a socket for");
  acceptor_.set_option(net::socket_base::reuse_address(true), error);
  acceptor_.bind(endpoint, error);
  if (error) return fail("bind to");
  acceptor_.listen(net::socket_base::max_listen_connections, error);
  if (error) return fail("listen at");
  return acceptor_.local_endpoint().port();
}

void HttpServer::Run(HttpHandler& handler, ShutdownCalls calls) {
  handler_ = &handler;
  calls_ = std::move(calls);
  signals_.add(SIGTERM);
  signals_.add(SIGINT);
  WaitForSignal();
  net::co_spawn(context_, Accept(), net::detached);
  context_.run();
}

void HttpServer::Stop() {
  net::post(context_, [this] {
    if (!draining_) Drain();
  });
}

void HttpServer::WaitForSignal() {
  signals_.async_wait([this](error_code error, int signal) {
    if (error) return;
    if (std::exchange(stopping_, true)) {
      spdlog::warn("a second signal: gone at once");
      _exit(128 + signal);
    }
    spdlog::info("signal {}: finishing what runs, for at most {} s", signal,
                 options_.drain_timeout.count());
    WaitForSignal();
    calls_.on_signal();
    DrainLater();
  });
}

void HttpServer::DrainLater() {
  if (options_.shutdown_delay <= Seconds(0)) return Drain();
  spdlog::info("no longer ready; requests are taken for {} s more",
               options_.shutdown_delay.count());
  drain_timer_.expires_after(
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.shutdown_delay));
  drain_timer_.async_wait([this](error_code error) {
    if (!error && !draining_) Drain();
  });
}

net::awaitable<void> HttpServer::Accept() {
  while (!draining_) {
    error_code error;
    tcp::socket socket =
        co_await acceptor_.async_accept(net::redirect_error(net::use_awaitable, error));
    if (draining_) break;
    if (error) {  // out of descriptors: some will be closed
      spdlog::warn("cannot accept a connection: {}", error.message());
      net::steady_timer pause(context_, kAcceptPause);
      co_await pause.async_wait(net::redirect_error(net::use_awaitable, error));
      continue;
    }
    if (connections_.size() >= options_.connections_max) {
      Refuse(std::move(socket));
      continue;
    }
    socket.set_option(tcp::no_delay(true), error);
    socket.set_option(net::socket_base::send_buffer_size(options_.send_buffer_bytes), error);
    const auto connection = std::make_shared<Connection>(*this, std::move(socket));
    connections_.insert(connection.get());
    net::co_spawn(
        context_, [connection] { return connection->Serve(); }, net::detached);
  }
}

// Says so without waiting for anybody, and hangs up.
void HttpServer::Refuse(tcp::socket socket) {
  const ApiError refusal = {
      .status = 503,
      .message =
          fmt::format("there are {} connections already: try again later (--connections-max)",
                      options_.connections_max)};
  const std::string body = ErrorBody(refusal);
  const std::string text = fmt::format(
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: "
      "{}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n{}",
      body.size(), body);
  error_code error;
  socket.non_blocking(true, error);
  socket.write_some(net::buffer(text), error);
  socket.shutdown(tcp::socket::shutdown_send, error);
  handler_->Refused(refusal);
}

void HttpServer::Drain() {
  draining_ = true;
  calls_.on_drain();
  error_code error;
  acceptor_.close(error);
  std::vector<Connection*> idle;
  for (Connection* connection : connections_) {
    if (connection->idle()) idle.push_back(connection);
  }
  for (Connection* connection : idle) connection->Close();
  drain_timer_.expires_after(
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.drain_timeout));
  drain_timer_.async_wait([this](error_code late) {
    if (late) return;
    calls_.on_late();
    drain_timer_.expires_after(kLastWords);
    drain_timer_.async_wait([this](error_code later) {
      if (later) return;
      const std::vector<Connection*> left(connections_.begin(), connections_.end());
      for (Connection* connection : left) connection->Close();
    });
  });
  EndIfDrained();
}

void HttpServer::Closed(Connection* connection) {
  connections_.erase(connection);
  EndIfDrained();
}

void HttpServer::EndIfDrained() {
  if (!draining_ || !connections_.empty()) return;
  drain_timer_.cancel();
  // A signal means again what it means without us: nobody would be here to see a second one.
  error_code error;
  signals_.clear(error);
  signals_.cancel(error);
}

}  // namespace kvcake
