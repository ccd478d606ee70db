#include "server/http_front.h"

#include "server/request_log.h"

namespace kvcake {

namespace net = boost::asio;

net::awaitable<void> HttpFront::Handle(const HttpRequest& request, HttpReply& reply) {
  return api_ != nullptr ? api_->Handle(request, reply) : AnswerUnready(request, reply);
}

void HttpFront::Refused(const HttpRequest& request, const ApiError& error, uint64_t sent_bytes) {
  if (api_ != nullptr) return api_->Refused(request, error, sent_bytes);
  Log(request, error.status, error, sent_bytes);
}

void HttpFront::Log(const HttpRequest& request, int status, std::optional<ApiError> error,
                    uint64_t sent_bytes) const {
  RequestRecord record = RecordOf(request);
  record.status = status;
  record.sent_bytes = sent_bytes;
  record.error = std::move(error);
  LogRequest(record, json_log_);
}

// The process is well, and ready for nothing. Keys are not asked for: nothing is told.
net::awaitable<void> HttpFront::AnswerUnready(const HttpRequest& request, HttpReply& reply) const {
  HttpResponse response;
  response.body = "{}";
  std::optional<ApiError> error;
  if (request.path != "/health") {
    error = draining_ ? ApiError{.status = 503, .message = "the server is shutting down"}
                      : ApiError{.status = 503,
                                 .message = "the model is being loaded: try again later",
                                 .code = "loading"};
    response.status = error->status;
    response.headers.emplace_back("Retry-After", "1");
    response.body = ErrorBody(*error);
  }
  const int status = response.status;
  co_await reply.Send(std::move(response));
  Log(request, status, std::move(error), reply.sent_bytes());
}

}  // namespace kvcake
