#include "server/generation.h"

#include <algorithm>
#include <utility>

namespace kvcake {

Generation::Generation(Detokenizer detokenizer, Options options, ServerMetrics& metrics,
                       std::function<void(bool done)> notify)
    : options_(std::move(options)),
      metrics_(metrics),
      notify_(std::move(notify)),
      detokenizer_(std::move(detokenizer)),
      stops_(options_.stops) {}

template <typename F>
void Generation::Publish(F change) {
  bool done;
  {
    MutexLock lock(mutex_);
    change(&delta_);
    done = delta_.completion.has_value();
    if (std::exchange(notified_, true) && !done) return;
  }
  notify_(done);
}

void Generation::OnAccepted() {
  Publish([](Delta* delta) { delta->accepted = true; });
}

bool Generation::IsText(int32_t token) const {
  const auto& ends = options_.end_tokens;
  return !options_.prompt_only && std::find(ends.begin(), ends.end(), token) == ends.end();
}

// As vLLM says it: the model's own end tokens are none.
StopReason Generation::ReasonOf(const Completion& completion) const {
  if (completion.finish_reason != FinishReason::kStop) return {};
  if (stops_.found()) return stops_.stop();
  const auto& named = options_.stop_tokens;
  if (completion.tokens.empty()) return {};
  const int32_t last = completion.tokens.back();
  if (std::find(named.begin(), named.end(), last) == named.end()) return {};
  return last;
}

// Moves the scores, which may be many, out of the event.
std::vector<TokenInfo> Generation::PromptInfos(const TokenEvent& event) const {
  std::vector<TokenInfo> infos(options_.prompt.size());
  for (size_t i = 0; i < infos.size(); ++i) {
    infos[i].token = options_.prompt[i];
    if (i == 0) continue;
    infos[i].logprob = event.prompt[i - 1].logprob;
    infos[i].top = std::move(event.prompt[i - 1].top);
  }
  return infos;
}

// As vLLM does it: a stop string may begin in the first min_tokens.
std::string Generation::BeforeStop(std::string_view text) {
  return tokens_ <= options_.min_tokens ? stops_.AppendEarly(text) : stops_.Append(text);
}

bool Generation::OnToken(const TokenEvent& event) {
  const bool first = !last_token_;
  const TimePoint now = Clock::Real().Now();
  if (last_token_) metrics_.inter_token_s.Observe((now - *last_token_).count());
  last_token_ = now;
  if (event.begun != nullptr) metrics_.Begun(*event.begun);
  if (!options_.prompt_only) metrics_.generation_tokens.Add();

  const bool is_text = IsText(event.token);
  std::vector<TokenInfo> infos;
  if (options_.logprobs && first) infos = PromptInfos(event);
  std::string text;
  ++tokens_;
  if (is_text && !options_.stops.empty()) text = BeforeStop(detokenizer_.Append(event.token));
  Publish([&](Delta* delta) {
    delta->text += text;
    delta->generated = options_.prompt_only ? 0 : tokens_;
    mutex_.AssertHeld();
    if (is_text && options_.stops.empty()) new_tokens_.push_back(event.token);
    if (!options_.logprobs) return;
    if (first) delta->tokens = std::move(infos);
    if (options_.prompt_only) return;
    delta->tokens.push_back({.token = event.token,
                             .logprob = event.logprob,
                             .top = {event.top.begin(), event.top.end()}});
  });
  return !stops_.found();
}

void Generation::OnDone(Result<Completion> completion) {
  if (completion && options_.prompt_only) completion->tokens.clear();
  std::string text;
  if (!options_.stops.empty()) {
    text = BeforeStop(detokenizer_.Finish());
    if (!stops_.found()) text += stops_.Finish();
    // A stop string may be complete only now.
    if (completion && stops_.found() && completion->finish_reason == FinishReason::kLength) {
      completion->finish_reason = FinishReason::kStop;
    }
  }
  StopReason reason;
  if (completion) {
    metrics_.Finished(*completion);
    reason = ReasonOf(*completion);
  }
  Publish([&](Delta* delta) {
    delta->text += text;
    delta->stop_reason = std::move(reason);
    delta->completion = std::move(completion);
  });
}

Generation::Delta Generation::Take() {
  taken_.clear();
  Delta delta;
  {
    MutexLock lock(mutex_);
    notified_ = false;
    delta = std::move(delta_);
    delta_ = {.accepted = delta.accepted, .generated = delta.generated};
    taken_.swap(new_tokens_);
  }
  if (!options_.stops.empty()) return delta;
  for (const int32_t token : taken_) delta.text += detokenizer_.Append(token);
  if (delta.completion) delta.text += detokenizer_.Finish();
  return delta;
}

}  // namespace kvcake
