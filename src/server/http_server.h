// HTTP/1.1, plain or in TLS: connections, their limits and time-outs, and draining. What is asked
// and answered is a handler's business. One thread runs everything here but what a handler
// offloads.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "server/api_error.h"
#include "server/asio.h"
#include "server/client_rules.h"
#include "server/connection_table.h"
#include "server/http_stats.h"
#include "server/request_head.h"

namespace boost::asio::ssl {
class context;
}

namespace kvcake {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;                                     // 0: any that is free
  std::vector<std::string> allowed_hosts = {};              // as HostRule has them
  std::vector<std::string> allowed_origins = {"loopback"};  // as OriginRule has them
  std::optional<uint16_t> admin_port = {};  // of a listener for those who run the server; 0: any
  std::string admin_host = "127.0.0.1";
  std::shared_ptr<boost::asio::ssl::context> tls = {};  // null: plain HTTP
  size_t connections_max = 4096;
  size_t connections_per_client_max = 2048;
  size_t admin_connections_max = 64;  // they take nobody's place
  size_t header_bytes_max = 16 << 10;
  int send_buffer_bytes = 256 << 10;  // that the kernel keeps for a client that does not read
  uint64_t body_bytes_max = 16 << 20;
  uint64_t bodies_bytes_max = 256 << 20;  // of all that have come and are not parsed yet
  Seconds idle_timeout{75};               // between requests, and for a client to take what is sent
  Seconds header_timeout{10};             // from a request's first byte to the end of its header
  Seconds body_timeout{60};               // from there to its end
  Seconds shutdown_delay{0};              // from the signal to the drain: balancers take notice
  Seconds drain_timeout{30};              // for what runs when the server is told to stop
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// Wakes one coroutine.
class Signal : public std::enable_shared_from_this<Signal> {
 public:
  explicit Signal(boost::asio::io_context& context) : context_(context), timer_(context) {}
  // Any thread; remembered until the next Wait returns.
  void Notify();
  // The context's thread. False at the deadline.
  boost::asio::awaitable<bool> Wait(TimePoint deadline = TimePoint::max());

 private:
  friend class SignalBatch;
  void Wake();

  boost::asio::io_context& context_;
  boost::asio::steady_timer timer_;
  bool ready_ = false;
};

// Wakes many with one message between threads: that costs more than what most have to be told. One
// thread.
class SignalBatch {
 public:
  explicit SignalBatch(boost::asio::io_context& context) : context_(context) {}
  // first: it goes before the others, though it has been added already.
  void Add(std::shared_ptr<Signal> signal, bool first) {
    (first ? first_ : signals_).push_back(std::move(signal));
  }
  void Notify();

 private:
  boost::asio::io_context& context_;
  std::vector<std::shared_ptr<Signal>> first_, signals_;
};

// The answer to one request: ReadBody where it matters, once; then Send once, or StartStream, Write
// and EndStream. These return false when the client has gone.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  // 499 when the client has gone, else an error to send. Counts against bodies_bytes_max from its
  // first byte until BodyDropped or the request's end. A body that nobody reads ends the connection
  // after the answer.
  virtual boost::asio::awaitable<ApiResult<std::string>> ReadBody() = 0;
  virtual void BodyDropped() = 0;
  virtual boost::asio::awaitable<bool> Send(HttpResponse response) = 0;
  virtual boost::asio::awaitable<bool> StartStream(HttpResponse head) = 0;
  virtual boost::asio::awaitable<bool> Write(std::string_view piece) = 0;
  virtual boost::asio::awaitable<bool> EndStream() = 0;
  // From now on `signal` is notified when the client goes away.
  virtual void WatchClient(std::shared_ptr<Signal> signal) = 0;
  virtual bool client_gone() = 0;
  // Bytes of the answer's body so far.
  virtual uint64_t sent_bytes() const = 0;
};

// Answers requests; on the context's thread.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual boost::asio::awaitable<void> Handle(const HttpRequest& request, HttpReply& reply) = 0;
  // A client was told that it will get no answer: no request could be read, or taken.
  // What is not known of the request is empty. `sent_bytes`: of the body that says so.
  virtual void Refused(const HttpRequest& request, const ApiError& error, uint64_t sent_bytes) = 0;
};

// What a server that is told to stop calls, in this order.
struct ShutdownCalls {
  std::function<void()> on_signal = [] {};  // at once: requests are still taken and answered
  std::function<void()> on_drain = [] {};   // after shutdown_delay: nothing more is accepted
  std::function<void()> on_late = [] {};    // after drain_timeout: what still runs is given up
};

// Who counts as one client: an address, of IPv6 the network that a site is given.
std::string ClientKey(const boost::asio::ip::address& address);

class HttpServer {
 public:
  // `context` outlives it, and is run by Run alone.
  HttpServer(boost::asio::io_context& context, HttpOptions options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The port; kIo when an address cannot be had.
  [[nodiscard]] Result<uint16_t> Listen();
  // The one of admin_port, where there is one; after Listen, any thread.
  std::optional<uint16_t> admin_port() const;
  // The context's thread.
  HttpStats Stats() const;
  // Answers requests until SIGTERM or SIGINT, and for shutdown_delay after it; then drains: accepts
  // nothing more, and returns when every request has been answered. SIGINT ends the process from
  // then on, after Run, too. SIGTERM says nothing new: who sends it may send it to a process and to
  // its group, as timeout(1) does.
  void Run(HttpHandler& handler, ShutdownCalls calls);
  // Any thread: drains now, as after a signal and its delay.
  void Stop();

 private:
  class Connection;
  friend class Connection;
  struct Listener;

  [[nodiscard]] Status Listen(Listener& listener);
  boost::asio::awaitable<void> Accept(Listener& listener);
  void Take(Listener& listener, boost::asio::ip::tcp::socket socket);
  void Refuse(const Listener& listener, boost::asio::ip::tcp::socket socket,
              ConnectionTable::Refusal why);
  boost::asio::awaitable<void> SayRefused(boost::asio::ip::tcp::socket accepted,
                                          HttpRequest request, ApiError refusal);
  void WaitForSignal();
  void DrainLater();
  void Drain();
  std::vector<Connection*> Connections() const;
  void Closed(Listener& listener, ConnectionTable::Id id);
  bool IsDrained() const;
  void EndIfDrained();
  std::string NextRequestId();

  // Constant after construction.
  boost::asio::io_context& context_;
  const HttpOptions options_;
  const OriginRule origin_rule_;

  // Owned by the context's thread.
  HttpHandler* handler_ = nullptr;                    // since Run
  ShutdownCalls calls_;                               // likewise
  std::vector<std::unique_ptr<Listener>> listeners_;  // of clients; of admins, if any
  boost::asio::signal_set signals_;
  boost::asio::steady_timer drain_timer_;
  uint64_t bodies_bytes_ = 0;  // what all connections have charged
  bool stopping_ = false;      // a signal has come
  bool draining_ = false;
  int refusing_ = 0;  // connections that are being told so
  uint64_t next_request_id_;
  uint64_t handshakes_failed_ = 0;
};

}  // namespace kvcake
