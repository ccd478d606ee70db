#include "server/http_server.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/ssl/stream.hpp>
#include <random>
#include <span>

#include "base/hash.h"
#include "server/http_connection.h"

namespace kvcake {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

namespace {

constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kLastWords{2};  // for answers to what on_late has given up, and to
                                               // who is refused
constexpr int kRefusalsMax = 64;               // that are being said

}  // namespace

std::string ClientKey(const net::ip::address& address) {
  if (address.is_v4()) return address.to_string();
  net::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) return net::ip::make_address_v4(net::ip::v4_mapped, v6).to_string();
  auto bytes = v6.to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return net::ip::address_v6(bytes).to_string();
}

void Signal::Notify() {
  net::post(context_, [self = shared_from_this()] { self->Wake(); });
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

HttpServer::Listener::Listener(HttpServer& server, bool is_admin)
    : admin(is_admin),
      host(admin ? server.options_.admin_host : server.options_.host),
      port(admin ? *server.options_.admin_port : server.options_.port),
      host_rule(host, server.options_.allowed_hosts),
      acceptor(server.context_),
      table(admin ? ConnectionTable::Limits{server.options_.admin_connections_max,
                                            server.options_.admin_connections_max}
                  : ConnectionTable::Limits{server.options_.connections_max,
                                            server.options_.connections_per_client_max}) {}

HttpServer::HttpServer(net::io_context& context, HttpOptions options)
    : context_(context),
      options_(std::move(options)),
      origin_rule_(options_.allowed_origins),
      signals_(context),
      drain_timer_(context),
      next_request_id_(uint64_t{std::random_device()()} << 32) {
  listeners_.push_back(std::make_unique<Listener>(*this, false));
  if (options_.admin_port) listeners_.push_back(std::make_unique<Listener>(*this, true));
}

HttpServer::~HttpServer() = default;

Result<uint16_t> HttpServer::Listen() {
  for (const auto& listener : listeners_) RETURN_IF_ERROR(Listen(*listener));
  return listeners_[0]->bound_port;
}

std::optional<uint16_t> HttpServer::admin_port() const {
  if (listeners_.size() == 1) return std::nullopt;
  return listeners_[1]->bound_port;
}

Status HttpServer::Listen(Listener& listener) {
  error_code error;
  const auto fail = [&](const char* what) {
    const char* prefix = listener.admin ? "--admin-" : "--";
    return Fail(ErrorCode::kIo, "cannot {} {}host {} {}port {}: {}", what, prefix, listener.host,
                prefix, listener.port, error.message());
  };
  const net::ip::address address =
      net::ip::make_address(listener.host == "localhost" ? "127.0.0.1" : listener.host, error);
  if (error) return fail("understand as an address");
  const tcp::endpoint endpoint(address, listener.port);
  tcp::acceptor& acceptor = listener.acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (error) return fail("open a socket for");
  acceptor.set_option(net::socket_base::reuse_address(true), error);
  acceptor.bind(endpoint, error);
  if (error) return fail("bind to");
  acceptor.listen(net::socket_base::max_listen_connections, error);
  if (error) return fail("listen at");
  listener.bound_port = acceptor.local_endpoint().port();
  return {};
}

HttpStats HttpServer::Stats() const {
  HttpStats stats{.clients = listeners_[0]->table.stats(), .handshakes_failed = handshakes_failed_};
  if (listeners_.size() > 1) stats.admin = listeners_[1]->table.stats();
  return stats;
}

void HttpServer::Run(HttpHandler& handler, ShutdownCalls calls) {
  handler_ = &handler;
  calls_ = std::move(calls);
  signals_.add(SIGTERM);
  signals_.add(SIGINT);
  WaitForSignal();
  for (const auto& listener : listeners_) {
    net::co_spawn(context_, Accept(*listener), net::detached);
  }
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
    if (!IsDrained()) WaitForSignal();  // it may be one that came as the last request ended
    if (std::exchange(stopping_, true)) {
      if (signal != SIGINT) return;
      spdlog::warn("SIGINT: gone at once");
      _exit(128 + signal);
    }
    spdlog::info("signal {}: finishing what runs, for at most {} s; SIGINT ends it at once", signal,
                 options_.drain_timeout.count());
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

net::awaitable<void> HttpServer::Accept(Listener& listener) {
  while (!draining_) {
    error_code error;
    tcp::socket socket =
        co_await listener.acceptor.async_accept(net::redirect_error(net::use_awaitable, error));
    if (draining_) break;
    if (error) {  // out of descriptors: some will be closed
      spdlog::warn("cannot accept a connection: {}", error.message());
      net::steady_timer pause(context_, kAcceptPause);
      co_await pause.async_wait(net::redirect_error(net::use_awaitable, error));
      continue;
    }
    Take(listener, std::move(socket));
  }
}

void HttpServer::Take(Listener& listener, tcp::socket socket) {
  error_code error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return;  // it has gone already
  const auto admission = listener.table.Admit(ClientKey(peer.address()));
  if (admission.id == 0) return Refuse(listener, std::move(socket), admission.refusal);
  const auto evicted = listener.connections.find(admission.evicted);
  if (evicted != listener.connections.end()) evicted->second->Close();
  socket.set_option(tcp::no_delay(true), error);
  socket.set_option(net::socket_base::send_buffer_size(options_.send_buffer_bytes), error);
  const auto connection =
      std::make_shared<Connection>(*this, listener, admission.id, std::move(socket));
  listener.connections.emplace(admission.id, connection.get());
  net::co_spawn(
      context_, [connection] { return connection->Serve(); }, net::detached);
}

void HttpServer::Refuse(const Listener& listener, tcp::socket socket,
                        ConnectionTable::Refusal why) {
  error_code error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  const bool of_client = why == ConnectionTable::Refusal::kClientFull && !listener.admin;
  const ApiError refusal = {
      .status = 503,
      .message = of_client ? fmt::format(
                                 "your address has {} connections with requests already: try again "
                                 "later (--max-connections-per-client)",
                                 options_.connections_per_client_max)
                           : fmt::format("all connections have requests already: try again later "
                                         "(--{}connections-max)",
                                         listener.admin ? "admin-" : "")};
  const HttpRequest request = {.client = peer.address().to_string()};
  if (refusing_ >= kRefusalsMax) {  // too many to talk with
    return handler_->Refused(request, refusal, 0);
  }
  ++refusing_;
  net::co_spawn(context_, SayRefused(std::move(socket), request, refusal), net::detached);
}

// Hangs up when the client has heard it, or has had time to: an answer is lost where what the
// client has sent is unread.
net::awaitable<void> HttpServer::SayRefused(tcp::socket accepted, HttpRequest request,
                                            ApiError refusal) {
  const std::string body = ErrorBody(refusal);
  const std::string text = fmt::format(
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: "
      "{}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n{}",
      body.size(), body);
  const auto socket = std::make_shared<tcp::socket>(std::move(accepted));
  net::steady_timer patience(context_, kLastWords);
  patience.async_wait([socket](error_code ended) {
    error_code ignored;
    if (!ended) socket->close(ignored);
  });
  error_code error;
  const auto token = [&error] { return net::redirect_error(net::use_awaitable, error); };
  if (options_.tls) {
    net::ssl::stream<tcp::socket&> stream(*socket, *options_.tls);
    co_await stream.async_handshake(net::ssl::stream_base::server, token());
    if (!error) co_await net::async_write(stream, net::buffer(text), token());
    if (!error) co_await stream.async_shutdown(token());
  } else {
    co_await net::async_write(*socket, net::buffer(text), token());
  }
  handler_->Refused(request, refusal, error ? 0 : body.size());
  socket->shutdown(tcp::socket::shutdown_send, error);
  std::array<char, 4096> unread;
  while (!error) co_await socket->async_read_some(net::buffer(unread), token());
  --refusing_;
}

// Unlike those of other processes, and of this one.
std::string HttpServer::NextRequestId() {
  return fmt::format("req-{:016x}", Xxh3_64(std::as_bytes(std::span(&++next_request_id_, 1))));
}

std::vector<HttpServer::Connection*> HttpServer::Connections() const {
  std::vector<Connection*> all;
  for (const auto& listener : listeners_) {
    for (const auto& [id, connection] : listener->connections) all.push_back(connection);
  }
  return all;
}

void HttpServer::Drain() {
  draining_ = true;
  calls_.on_drain();
  error_code error;
  for (const auto& listener : listeners_) listener->acceptor.close(error);
  for (Connection* connection : Connections()) {
    if (connection->idle()) connection->Close();
  }
  drain_timer_.expires_after(
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.drain_timeout));
  drain_timer_.async_wait([this](error_code late) {
    if (late) return;
    calls_.on_late();
    drain_timer_.expires_after(kLastWords);
    drain_timer_.async_wait([this](error_code later) {
      if (later) return;
      for (Connection* connection : Connections()) connection->Close();
    });
  });
  EndIfDrained();
}

void HttpServer::Closed(Listener& listener, ConnectionTable::Id id) {
  listener.table.Remove(id);
  listener.connections.erase(id);
  EndIfDrained();
}

bool HttpServer::IsDrained() const { return draining_ && Connections().empty(); }

void HttpServer::EndIfDrained() {
  if (!IsDrained()) return;
  drain_timer_.cancel();
  // SIGINT means again what it means without us: nobody would be here to see it.
  error_code error;
  signals_.remove(SIGINT, error);
  signals_.cancel(error);
}

}  // namespace kvcake
