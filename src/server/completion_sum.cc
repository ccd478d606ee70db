#include "server/completion_sum.h"

#include <algorithm>

namespace kvcake {
namespace {

// Worse ends stand behind better ones.
int Badness(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return 0;
    case FinishReason::kLength:
      return 1;
    case FinishReason::kCancelled:
      return 2;
    case FinishReason::kError:
      break;
  }
  return 3;
}

void AddPrompt(const Completion& of, RestoreReport* sum) {
  const RestoreReport& report = of.report;
  // The last token of each prompt is computed, whatever was there.
  int beyond = report.tokens_reused + report.loaded() - CachedTokens(of);
  const auto kept = [&beyond](int tokens) {
    const int gone = std::min(tokens, beyond);
    beyond -= gone;
    return tokens - gone;
  };
  sum->prompt_tokens += report.prompt_tokens;
  sum->tokens_computed += report.tokens_computed;
  sum->tokens_reused += kept(report.tokens_reused);
  for (const auto& [tier, tokens] : report.tokens_loaded) sum->tokens_loaded[tier] += kept(tokens);
  sum->chunks_failed += report.chunks_failed;
  if (!report.lossy.empty()) sum->lossy = report.lossy;  // one process has the same for all
}

void AddAnswer(const Completion& of, Completion* sum) {
  sum->tokens.insert(sum->tokens.end(), of.tokens.begin(), of.tokens.end());
  sum->preemptions += of.preemptions;
  if (!sum->chain) sum->chain = of.chain;  // the others found in memory what it had computed
  for (const auto time : {&Completion::queue_s, &Completion::restore_s, &Completion::ttft_s,
                          &Completion::decode_s, &Completion::steps_s}) {
    sum->*time = std::max(sum->*time, of.*time);
  }
  if (Badness(of.finish_reason) > Badness(sum->finish_reason)) {
    sum->finish_reason = of.finish_reason;
    sum->error = of.error;
  }
}

}  // namespace

int CachedTokens(const Completion& completion) {
  const RestoreReport& report = completion.report;
  // The last token is computed again even if all were there: somebody must make logits.
  return std::min(report.tokens_reused + report.loaded(), std::max(report.prompt_tokens - 1, 0));
}

Completion SumOf(std::span<const Completion> completions, int n) {
  if (completions.size() == 1) return completions.front();
  Completion sum{.finish_reason = FinishReason::kStop};
  const auto step = static_cast<size_t>(n);
  for (size_t i = 0; i < completions.size(); i += step) {
    const auto of_prompt = completions.subspan(i, std::min(step, completions.size() - i));
    AddPrompt(*std::ranges::min_element(of_prompt, {}, CachedTokens), &sum.report);
  }
  for (const Completion& one : completions) AddAnswer(one, &sum);
  return sum;
}

}  // namespace kvcake
