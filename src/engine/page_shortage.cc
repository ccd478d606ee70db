#include "engine/page_shortage.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace kvcake {

void PageShortage::Look(uint64_t held) {
  const TimePoint now = clock_.Now();
  admission_.SetHeld(held);
  while (const auto sequence = admission_.TakeUnservable(now, options_.stall_timeout)) {
    Fail(*sequence);
  }
  Note(now);
  if (!admission_.short_since()) return;
  if (admission_.running().size() == 1) {
    const Sequence& alone = *admission_.running().front();
    if (now - *alone.short_since > options_.stall_timeout) Fail(*admission_.Remove(alone.id));
    return;
  }
  const bool all = now - *since_ > options_.stall_timeout / 2;
  if (!all && now - asked_ <= options_.patience) return;
  asked_ = now;
  do {
    admission_.PreemptYoungest();
  } while (all && admission_.running().size() > 1 && admission_.short_since());
}

void PageShortage::Note(TimePoint now) {
  if (const auto since = admission_.short_since()) {
    last_short_ = now;
    if (!since_) since_ = asked_ = *since;
  } else if (since_ && now - last_short_ > options_.patience) {
    since_.reset();
  }
}

void PageShortage::Fail(Sequence& sequence) {
  sequence.completion.error = fmt::format(
      "{} pages of KV cache are held by reads and writes that a store has not ended in time, and "
      "the request's {} tokens need {} of the {} that are left: see the health of the store",
      admission_.held(), sequence.tokens.size(), admission_.PagesToRun(sequence),
      admission_.available());
  spdlog::error("request {} is given up: {}", sequence.id, sequence.completion.error);
  completions_.Finish(sequence, FinishReason::kError);
}

}  // namespace kvcake
