#include "engine/sequence.h"

#include <algorithm>
#include <utility>

namespace kvcake {

void Sequence::EndRestoration(int chunk_tokens, NumericPath path, TimePoint now) {
  table = restoration->TakePages();
  kv_tokens = static_cast<int>(table.size()) * chunk_tokens;
  if (tail_page) table.push_back(std::move(tail_page));
  numeric_path = path;
  if (restoration->Progress().mixed_path) MixPaths();
  state = State::kPrefilling;
  progressed = now;
  if (generated() == 0) completion.restore_s = (now - opened).count();
}

void Sequence::MixPaths() {
  request.store = false;
  numeric_path = NumericPath::kUnknown;
}

void Sequence::ReportRestoration() {
  completion.report = restoration->Report(tail);
  if (generated() == 0) {  // the prompt's end, which the report takes for computed, may not be
    const RestoreProgress restored = restoration->Progress();
    const int resident = restored.computed + restored.loaded + restored.reused;
    completion.report.tokens_computed = restored.computed + std::max(0, kv_tokens - resident);
  }
  for (TimelineEntry& entry : tail_slices) completion.report.AddTimeline(std::move(entry));
  tail_slices.clear();
  completion.report.SetActual(Seconds(completion.ttft_s));
  // The bound is that of one process, and of chunks that were planned.
  if (divided) completion.report.bound_s = completion.report.efficiency = 0;
}

void Sequence::MakeKeys(int chunk_tokens) {
  keys.clear();
  if (!scores_prompt()) keys = ChunkKeys(root, tokens, chunk_tokens);
}

void Sequence::ReleasePages() {
  if (state == State::kRestoring) restoration->Abandon();
  table.clear();
  tail_page = {};
}

void Sequence::Preempt(int chunk_tokens) {
  restoration.reset();
  tail_slices.clear();
  chain.reset();
  unproven = false;
  short_since.reset();
  kv_tokens = 0;
  if (generated() == 0) {
    completion.prompt_scores.clear();
    ++completion.preempted_in_prompt;
  }
  state = State::kWaiting;
  ++completion.preemptions;
  MakeKeys(chunk_tokens);
}

}  // namespace kvcake
