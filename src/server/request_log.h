// What became of a request: one line of the log.
//
// Text: CLIENT REQUEST-ID METHOD PATH STATUS: why not; what the engine did; bytes and time
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/request.h"
#include "server/api_error.h"

namespace kvcake {

struct HttpRequest;

struct RequestRecord {
  std::string client = {};      // its address
  std::string request_id = {};  // X-Request-Id
  std::string method = {};
  std::string path = {};
  std::string id = {};  // of the answer; empty: the engine was not asked
  std::string tenant = {};
  int status = 0;               // of HTTP; 0: nothing was sent
  uint64_t received_bytes = 0;  // of bodies
  uint64_t sent_bytes = 0;
  double total_s = 0;                         // from the request's arrival to the end of the answer
  std::optional<ApiError> error = {};         // why there is no answer, or not all of it
  std::optional<Completion> completion = {};  // where the engine took it: SumOf all answers
  size_t choices = 0;                         // so many answers,
  size_t answers = 0;                         // of which so many are there to be counted
};

// With what the request says of itself.
RequestRecord RecordOf(const HttpRequest& request);

// Fields of what did not come to pass (times, tokens, the restoration) are left out.
nlohmann::ordered_json RequestJson(const RequestRecord& record);
std::string RequestText(const RequestRecord& record);
// To the log, as either: at level debug where a probe has been answered, or told that the server is
// not ready, warning where the server is to blame, else info.
void LogRequest(const RequestRecord& record, bool json);

}  // namespace kvcake
