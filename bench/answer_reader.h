// One answer of an OpenAI-compatible server, read while it comes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/sse.h"

namespace kvcake::bench {

struct Answer {
  std::string text;
  std::string finish_reason;
  std::vector<double> token_s;  // when each event with text came
  double end_s = 0;             // its last event
  // What the server says of it; absent: nothing.
  std::optional<int> prompt_tokens, completion_tokens, cached_tokens;
  // What kept it from being one: a few words to count by, and the whole story.
  std::string error_kind, error;

  bool ok() const { return error_kind.empty(); }
  void SetError(std::string kind, std::string what) {
    error_kind = std::move(kind);
    error = std::move(what);
  }
};

// A stream of completions or of chat chunks.
class AnswerReader {
 public:
  // Bytes of the body that came at `now_s`. False: nothing more is wanted of this answer.
  bool Feed(std::string_view bytes, double now_s);
  // The body is over. An answer that was cut short has an error.
  Answer Finish();

 private:
  void TakeEvent(std::string_view data, double now_s);
  void TakeChoice(const nlohmann::json& choice, double now_s);

  SseReader events_;
  Answer answer_;
  bool done_ = false;
};

// What a body with status `status` says went wrong: OpenAI's error.message, or its beginning.
std::string ErrorMessage(int status, std::string_view body);

}  // namespace kvcake::bench
