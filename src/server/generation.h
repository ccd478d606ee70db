// One answer as it is made: filled on the engine thread, sent by a connection.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/stop_strings.h"
#include "model/tokenizer.h"
#include "server/engine_loop.h"
#include "server/openai_response.h"
#include "server/server_metrics.h"

namespace kvcake {

class Generation : public AnswerSink {
 public:
  struct Options {
    bool prompt_only = false;  // the answer is not wanted
    std::vector<std::string> stops = {};
    std::vector<int32_t> end_tokens = {};  // are no part of the text
    bool skip_special = true;
    bool logprobs = false;
    std::vector<int32_t> prompt = {};  // to be among the tokens, with logprobs
  };
  // What is new since the last Take.
  struct Delta {
    bool accepted = false;  // ever
    std::string text = {};
    std::vector<TokenInfo> tokens = {};                 // only with logprobs
    std::optional<Result<Completion>> completion = {};  // the last thing to come
  };

  // `notify` is called on the engine thread when there is something new and Take has been called
  // since the last time. The tokenizer and the metrics outlive it.
  Generation(const Tokenizer& tokenizer, Options options, ServerMetrics& metrics,
             std::function<void()> notify);

  // The engine thread's.
  void OnAccepted() override;
  bool OnToken(const TokenEvent& event) override;
  void OnDone(Result<Completion> completion) override;

  // Any thread's.
  Delta Take();

 private:
  // Calls `change` on the delta, and tells the reader.
  template <typename F>
  void Publish(F change);

  // Constant after construction.
  const Options options_;
  ServerMetrics& metrics_;
  const std::function<void()> notify_;

  // Owned by the engine thread.
  Detokenizer detokenizer_;
  StopStrings stops_;
  std::optional<TimePoint> last_token_;

  std::mutex mutex_;
  Delta delta_;            // guarded by mutex_
  bool notified_ = false;  // guarded by mutex_
};

}  // namespace kvcake
