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
  if (!since_ || admission_.running().empty()) return;
  if (admission_.running().size() > 1) {
    if (now - asked_ <= options_.patience) return;
    asked_ = now;
    admission_.PreemptYoungest();
  } else if (now - *since_ > options_.stall_timeout) {
    Fail(*admission_.Remove(admission_.running().front()->id));
    since_.reset();
  }
}

void PageShortage::Planned(bool lacks_pages) {
  if (!lacks_pages) {
    since_.reset();
  } else if (!since_) {
    since_ = asked_ = clock_.Now();
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
