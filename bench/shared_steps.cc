#include "bench/shared_steps.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace kvcake::bench {
namespace {

uint64_t PagesOf(const RuntimeOptions& options) {
  return (options.slice_tokens + options.chunk_tokens - 1) / options.chunk_tokens;
}

}  // namespace

Result<std::unique_ptr<SharedSteps>> SharedSteps::Install(Runtime& runtime, SpeedTrace shares) {
  const uint64_t needed = PagesOf(runtime.options());
  const PagePool& pool = runtime.pool();
  if (pool.pages() <= needed) {
    return Fail(ErrorCode::kResourceExhausted,
                "--compute-share takes {} pages of {} bytes and {} has {}: raise it", needed,
                pool.layout().page_bytes(), PagesFlag(runtime.options().path), pool.pages());
  }
  auto steps = std::unique_ptr<SharedSteps>(new SharedSteps(runtime, std::move(shares)));
  runtime.engine().SetStepBudget(steps.get());
  return steps;
}

Result<std::unique_ptr<SharedSteps>> SharedSteps::Install(Runtime& runtime,
                                                          const std::optional<SpeedTrace>& shares) {
  if (!shares) return nullptr;
  return Install(runtime, *shares);
}

SharedSteps::SharedSteps(Runtime& runtime, SpeedTrace shares)
    : runtime_(runtime),
      chunk_tokens_(runtime.options().chunk_tokens),
      share_(std::move(shares), runtime.options().slice_tokens, chunk_tokens_),
      tokens_(runtime.options().slice_tokens, 0) {
  while (pages_.size() < PagesOf(runtime.options())) {
    auto page = runtime.pool().Draw();
    CHECK(page.has_value());
    pages_.push_back(std::move(*page));
  }
}

SharedSteps::~SharedSteps() { runtime_.engine().SetStepBudget(nullptr); }

ComputeBudget SharedSteps::ForRestorations(TimePoint now) {
  if (!began_) began_ = now;
  return {.chunks = share_.Budget(At(now)), .share = share_.typical()};
}

std::optional<Slice> SharedSteps::Fill(int position, int tokens) {
  // From a chunk's beginning, so that it writes each of its few pages once; what it reads before
  // them are the same pages again and again.
  const int start = std::max(0, std::min(position, runtime_.model().max_positions() - tokens)) /
                    chunk_tokens_ * chunk_tokens_;
  table_.clear();
  for (int at = 0; at < start + tokens; at += chunk_tokens_) {
    table_.push_back(pages_[at / chunk_tokens_ % pages_.size()].id());
  }
  return Slice{.tokens = std::span(tokens_).first(tokens), .start = start, .pages = table_};
}

void SharedSteps::Ran(TimePoint began, int chunks) { share_.Step(At(began), chunks); }

}  // namespace kvcake::bench
