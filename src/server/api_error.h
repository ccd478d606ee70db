// What a client did wrong, in the words and the shape of OpenAI's API.
#pragma once

#include <string>
#include <tl/expected.hpp>

#include "base/status.h"

namespace kvcake {

struct ApiError {
  int status = 400;  // of HTTP
  std::string message = {};
  std::string param = {};  // the offending field: "messages[0].content"; empty: none
  std::string code = {};   // "model_not_found"; empty: none
  bool final = false;      // asking again would end in the same way
};

// The code of a server whose engine does not come around.
inline constexpr char kEngineStuck[] = "engine_stuck";

template <typename T>
using ApiResult = tl::expected<T, ApiError>;

inline tl::unexpected<ApiError> BadField(std::string param, std::string message) {
  return tl::unexpected<ApiError>(
      ApiError{.message = std::move(message), .param = std::move(param)});
}

// What the engine or the tokenizer refused: 400 for what can never be answered, 503 for what was
// given up, 500 for the rest.
ApiError ToApiError(const Error& error);

// {"error": {"message", "type", "param", "code"}}
std::string ErrorBody(const ApiError& error);

}  // namespace kvcake
