#include "server/http_front.h"

#include "server/request_log.h"

namespace kvcake {

namespace net = boost::asio;

net::awaitable<void> HttpFront::Handle(const HttpRequest& request, HttpReply& reply) {
  return api_ != nullptr ? api_->Handle(request, reply) : AnswerUnready(request, reply);
}

void HttpFront::Refused(const ApiError& error) {
  if (api_ != nullptr) return api_->Refused(error);
  LogRequest({.id = "-", .path = "-", .status = error.status, .error = error}, json_log_);
}

// The process is well, and ready for nothing. Keys are not asked for: nothing is told.
net::awaitable<void> HttpFront::AnswerUnready(const HttpRequest& request, HttpReply& reply) const {
  HttpResponse response;
  response.body = "{}";
  if (request.path != "/health") {
    response.status = 503;
    response.headers.emplace_back("Retry-After", "1");
    response.body =
        ErrorBody(draining_ ? ApiError{.status = 503, .message = "the server is shutting down"}
                            : ApiError{.status = 503,
                                       .message = "the model is being loaded: try again later",
                                       .code = "loading"});
  }
  co_await reply.Send(std::move(response));
}

}  // namespace kvcake
