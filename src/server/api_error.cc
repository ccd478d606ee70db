#include "server/api_error.h"

#include "base/dump_json.h"

namespace kvcake {
namespace {

const char* TypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

ApiError ToApiError(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kResourceExhausted:
      return {.status = 400, .message = error.message};
    case ErrorCode::kCancelled:
      return {.status = 503, .message = error.message};
    default:
      return {.status = 500, .message = error.message};
  }
}

std::string ErrorBody(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  const nlohmann::ordered_json body = {{"error",
                                        {{"message", error.message},
                                         {"type", TypeOf(error.status)},
                                         {"param", or_null(error.param)},
                                         {"code", or_null(error.code)}}}};
  return DumpJson(body);
}

}  // namespace kvcake
