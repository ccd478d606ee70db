#include "engine/completions.h"

namespace kvcake {

void Completions::Finish(Sequence& sequence, FinishReason reason) {
  owned_.Note(sequence.request.tenant, sequence.keys);
  admission_.Release(sequence);
  Completion& completion = sequence.completion;
  completion.finish_reason = reason;
  if (sequence.restoration && sequence.generated() == 0) sequence.ReportRestoration();
  if (sequence.generated() > 0) {
    completion.decode_s = (clock_.Now() - sequence.first_token).count();
  }
  finished_[sequence.id] = std::move(completion);
  if (finished_.size() > admission_.sequences_max()) finished_.erase(finished_.begin());
  sequence.state = Sequence::State::kFinished;
}

std::optional<Completion> Completions::Take(SequenceId id) {
  auto node = finished_.extract(id);
  if (!node) return std::nullopt;
  return std::move(node.mapped());
}

std::optional<std::pair<SequenceId, Completion>> Completions::TakeAny() {
  if (finished_.empty()) return std::nullopt;
  auto node = finished_.extract(finished_.begin());
  return std::pair(node.key(), std::move(node.mapped()));
}

}  // namespace kvcake
