// One connection of an HttpServer.
#pragma once

#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/http_server.h"
#include "server/http_stream.h"

namespace kvcake {

using AnswerHead = boost::beast::http::response<boost::beast::http::empty_body>;

struct HttpServer::Listener {
  Listener(HttpServer& server, bool is_admin);

  const bool admin;
  const std::string host;
  const uint16_t port;
  const HostRule host_rule;
  uint16_t bound_port = 0;  // since Listen
  boost::asio::ip::tcp::acceptor acceptor;
  ConnectionTable table;
  std::unordered_map<ConnectionTable::Id, Connection*> connections = {};  // also those evicted
};

class HttpServer::Connection : public HttpReply,
                               public std::enable_shared_from_this<HttpServer::Connection> {
 public:
  Connection(HttpServer& server, Listener& listener, ConnectionTable::Id id,
             boost::asio::ip::tcp::socket socket);
  ~Connection() override;

  // Reads requests and has them answered until either side has had enough.
  boost::asio::awaitable<void> Serve();
  // No request is being read or answered.
  bool idle() const { return idle_; }
  void Close();

  boost::asio::awaitable<ApiResult<std::string>> ReadBody() override;
  void BodyDropped() override { ChargeBody(0); }
  boost::asio::awaitable<bool> Send(HttpResponse response) override;
  boost::asio::awaitable<bool> StartStream(HttpResponse response) override;
  boost::asio::awaitable<bool> Write(std::string_view piece) override;
  boost::asio::awaitable<bool> EndStream() override;
  void WatchClient(std::shared_ptr<Signal> signal) override;
  bool client_gone() override;
  uint64_t sent_bytes() const override { return sent_bytes_; }

 private:
  boost::asio::awaitable<bool> Handshake();
  boost::asio::awaitable<bool> ReadHeader();
  std::optional<ApiError> CheckHead() const;
  bool DropEmptyLines();
  boost::asio::awaitable<bool> AwaitRequest();
  boost::asio::awaitable<void> Refuse(ApiError error);
  boost::asio::awaitable<void> Linger();
  void SetHead(const HttpResponse& response, AnswerHead* message) const;
  template <typename Buffers>
  boost::asio::awaitable<size_t> WriteAll(const Buffers& buffers);
  void ChargeBody(uint64_t bytes);
  void Watched();
  void StopWatching();

  HttpServer& server_;
  Listener& listener_;
  const ConnectionTable::Id id_;
  std::string client_;  // its address
  HttpStream stream_;
  boost::asio::steady_timer look_timer_;
  boost::beast::flat_buffer buffer_;
  bool idle_ = true;
  uint64_t charged_ = 0;  // of the server's bodies_bytes_
  // Belong to the request being read or answered.
  std::optional<RequestParser> parser_;
  unsigned version_ = 11;
  bool keep_alive_ = true;
  bool chunked_ = true;
  bool head_only_ = false;
  bool gone_ = false;
  HttpRequest request_;
  uint64_t sent_bytes_ = 0;
  std::string allowed_origin_;  // of the page that asks; empty: it may not read the answer
  std::shared_ptr<Signal> watcher_;
};

}  // namespace kvcake
