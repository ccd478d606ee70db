// What became of a request: one line of the log.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/request.h"
#include "server/api_error.h"

namespace kvcake {

struct RequestRecord {
  std::string id = {};
  std::string path = {};
  std::string tenant = {};
  int status = 0;                             // of HTTP; 0: nothing was sent
  double total_s = 0;                         // from the request's arrival to the end of the answer
  std::optional<ApiError> error = {};         // why there is no answer, or not all of it
  std::optional<Completion> completion = {};  // where the engine took it
};

// Fields of what did not come to pass (times, tokens, the restoration) are left out.
nlohmann::ordered_json RequestJson(const RequestRecord& record);
std::string RequestText(const RequestRecord& record);
// To the log, as either.
void LogRequest(const RequestRecord& record, bool json);

}  // namespace kvcake
