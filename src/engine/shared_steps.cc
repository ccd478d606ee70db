#include "engine/shared_steps.h"

#include <algorithm>

#include "base/check.h"

namespace kvcake {

uint64_t SharedSteps::PagesFor(int slice_tokens, int chunk_tokens) {
  return (slice_tokens + chunk_tokens - 1) / chunk_tokens;
}

SharedSteps::SharedSteps(SpeedTrace shares, const Model& model, PagePool& pool, int slice_tokens)
    : model_(model),
      slice_tokens_(slice_tokens),
      chunk_tokens_(model.layout().chunk_tokens),
      share_(std::move(shares), slice_tokens, chunk_tokens_),
      tokens_(slice_tokens, 0) {
  while (pages_.size() < PagesFor(slice_tokens, chunk_tokens_)) {
    auto page = pool.Draw();
    CHECK(page.has_value());
    pages_.push_back(std::move(*page));
  }
}

ComputeBudget SharedSteps::Budget(TimePoint now) {
  if (!began_) began_ = now;
  return {.chunks = share_.Budget(At(now)), .share = share_.typical()};
}

Slice SharedSteps::Fill(int position, int tokens) {
  // From a chunk's beginning, so that it writes each of its few pages once; what it reads before
  // them are the same pages again and again.
  const int start = std::max(0, std::min(position, model_.max_positions() - tokens)) /
                    chunk_tokens_ * chunk_tokens_;
  table_.clear();
  for (int at = 0; at < start + tokens; at += chunk_tokens_) {
    table_.push_back(pages_[at / chunk_tokens_ % pages_.size()].id());
  }
  return {.tokens = std::span(tokens_).first(tokens), .start = start, .pages = table_};
}

void SharedSteps::Ran(TimePoint began, int chunks) { share_.Step(At(began), chunks); }

}  // namespace kvcake
