// Requests as tests write them.
#pragma once

#include <string>

#include "server/openai_request.h"

namespace kvcake {

inline ApiResult<GenerateRequest> ParsedChat(const std::string& body) {
  const auto read = ParseBody(body);
  if (!read) return tl::unexpected<ApiError>(read.error());
  return ParseChat(*read);
}
// {"messages": [...], FIELD}
inline ApiResult<GenerateRequest> ChatWith(const std::string& field) {
  return ParsedChat(R"({"messages": [{"role": "user", "content": "x"}], )" + field + "}");
}

}  // namespace kvcake
