// What a server says while its model is being loaded; then the API answers.
#pragma once

#include "server/http_server.h"

namespace kvcake {

// On the context's thread.
class HttpFront : public HttpHandler {
 public:
  explicit HttpFront(bool json_log) : json_log_(json_log) {}

  boost::asio::awaitable<void> Handle(const HttpRequest& request, HttpReply& reply) override;
  void Refused(const HttpRequest& request, const ApiError& error, uint64_t sent_bytes) override;

  // From now on `api` answers; it outlives the server's Run.
  void Open(HttpHandler& api) { api_ = &api; }
  bool open() const { return api_ != nullptr; }
  // The server goes away before its model is there.
  void Drain() { draining_ = true; }

 private:
  boost::asio::awaitable<void> AnswerUnready(const HttpRequest& request, HttpReply& reply) const;
  void Log(const HttpRequest& request, int status, std::optional<ApiError> error,
           uint64_t sent_bytes) const;

  const bool json_log_;
  HttpHandler* api_ = nullptr;
  bool draining_ = false;
};

}  // namespace kvcake
