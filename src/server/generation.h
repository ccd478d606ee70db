// One answer as it is made: filled on the engine thread, sent by a connection.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
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
    int min_tokens = 0;                     // stop strings end behind so many
    std::vector<int32_t> end_tokens = {};   // are no part of the text
    std::vector<int32_t> stop_tokens = {};  // those of them that the client named
    bool logprobs = false;
    std::vector<int32_t> prompt = {};  // to be among the tokens, with logprobs
  };
  // What is new since the last Take.
  struct Delta {
    bool accepted = false;  // ever
    std::string text = {};
    std::vector<TokenInfo> tokens = {};                 // only with logprobs
    int generated = 0;                                  // tokens of the answer, of all so far
    std::optional<Result<Completion>> completion = {};  // the last thing to come
    StopReason stop_reason = {};                        // comes with it
  };

  // `notify` is called on the engine thread when there is something new and Take has been called
  // since the last time, and at the end (done). The detokenizer's tokenizer and the metrics outlive
  // it.
  Generation(Detokenizer detokenizer, Options options, ServerMetrics& metrics,
             std::function<void(bool done)> notify);

  // The engine thread's.
  void OnAccepted() override;
  bool OnToken(const TokenEvent& event) override;
  void OnDone(Result<Completion> completion) override;

  // The reader's, a thread at a time.
  Delta Take();

 private:
  // Calls `change` on the delta, and tells the reader.
  template <typename F>
  void Publish(F change) EXCLUDES(mutex_);
  bool IsText(int32_t token) const;
  StopReason ReasonOf(const Completion& completion) const;
  // What is certain to precede any stop string, with text of the last token.
  std::string BeforeStop(std::string_view text);
  std::vector<TokenInfo> PromptInfos(const TokenEvent& event) const;

  // Constant after construction.
  const Options options_;
  ServerMetrics& metrics_;
  const std::function<void(bool done)> notify_;

  // Belong to the engine thread where there are stop strings: they end the answer at once. Else to
  // the reader: between steps, every stream waits for what each token takes.
  Detokenizer detokenizer_;
  StopStrings stops_;

  // Owned by the engine thread.
  std::optional<TimePoint> last_token_;
  int tokens_ = 0;              // so far
  std::vector<int32_t> taken_;  // owned by the reader

  Mutex mutex_;
  Delta delta_ GUARDED_BY(mutex_);
  std::vector<int32_t> new_tokens_ GUARDED_BY(mutex_);  // that the reader makes text of
  bool notified_ GUARDED_BY(mutex_) = false;
};

}  // namespace kvcake
