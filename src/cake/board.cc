#include "cake/board.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvcake {

Board::Board(const RestoreContext& context, RestoreRequest request, uint64_t serial, size_t tiers)
    : context_(context),
      request_(std::move(request)),
      serial_(serial),
      opened_(context.clock.Now()),
      claims_(static_cast<int>(request_.keys.size())),
      peers_(claims_.size()),
      pages_(request_.keys.size()),
      initial_(request_.keys.size()),
      pinned_(tiers),
      failures_(tiers),
      loads_left_(tiers),
      progressed_(opened_),
      first_mixed_(claims_.size()) {
  report_.policy = request_.policy;
  report_.chunk_tokens = request_.chunk_tokens;
  report_.prompt_tokens = request_.prompt_tokens;
}

std::optional<int> Board::FixedSplit() const {
  if (request_.policy == Policy::kCompute) return claims_.size();
  if (request_.policy == Policy::kLoad) return 0;
  return request_.forced_split;
}

bool Board::SameDocument(const Board& other) const {
  const size_t n = std::min(request_.keys.size(), other.request_.keys.size());
  return n > 0 && request_.keys[n - 1] == other.request_.keys[n - 1];
}

bool Board::Wants(int chunk, const ChunkKey& key) const {
  if (chunk >= claims_.size() || request_.keys[chunk] != key) return false;
  const ChunkState state = claims_.state(chunk);
  return state != ChunkState::kResident && state != ChunkState::kComputing;
}

void Board::Adopt(int chunk, PageHandle page) {
  pages_[chunk] = std::move(page);
  claims_.Adopt(chunk);
  progressed_ = Now();
  report_.tokens_reused += request_.chunk_tokens;
  initial_[chunk].state = ChunkView::State::kResident;
  NotePath(chunk);
  NoteResident();
}

void Board::Loaded(int chunk, std::string_view tier, PageHandle page) {
  pages_[chunk] = std::move(page);
  progressed_ = Now();
  report_.tokens_loaded[std::string(tier)] += request_.chunk_tokens;
  if (first_loaded_ < 0 || chunk < first_loaded_) first_loaded_ = chunk;
  NotePath(chunk);
  NoteResident();
}

void Board::NotePath(int chunk) {
  if (context_.pool.path(pages_[chunk].id()) == context_.options.numeric_path) return;
  ++report_.chunks_mixed_path;
  first_mixed_ = std::min(first_mixed_, chunk);
}

std::vector<PageId> Board::PageIds(int chunks) const {
  CHECK(chunks >= 0 && chunks <= claims_.size() && !closed_);
  CHECK(chunks <= std::max(claims_.first_missing(), slice_ ? slice_->claim.end() : 0));
  return IdsOf(std::span(pages_).first(chunks));
}

PageHandle Board::PageOf(int chunk) const {
  CHECK(!closed_);
  const bool resident = claims_.state(chunk) == ChunkState::kResident;
  return resident && pages_[chunk] ? pages_[chunk].Share() : PageHandle();
}

PageTable Board::TakePages() {
  CHECK(!closed_ && claims_.done());
  report_.restored_s = At(Now());
  return std::exchange(pages_, {});
}

void Board::Close() {
  CHECK(!closed_);
  closed_ = true;
  pages_.clear();
}

void Board::SetLoadable(int tier, const std::vector<bool>& held) {
  claims_.SetLoadable(tier, held);
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i]) initial_[i].tiers |= 1u << tier;
  }
}

void Board::AddLoadable(int chunk, int tier) {
  claims_.AddLoadable(chunk, tier);
  initial_[chunk].tiers |= 1u << tier;
}

void Board::AddPins(int tier, std::vector<ChunkKey> keys) {
  pinned_[tier].insert(pinned_[tier].end(), keys.begin(), keys.end());
}

void Board::BeginRead(int tier, uint64_t number) {
  last_read_ = number;
  if (loads_left_[tier] > 0) --loads_left_[tier];
}

Claim Board::ClaimSlice(PageTable drawn, std::vector<int>* taken) {
  const Claim claim = claims_.ClaimFront(static_cast<int>(drawn.size()), /*take_over=*/true, taken);
  CHECK(claim.count == static_cast<int>(drawn.size()));
  for (int i = 0; i < claim.count; ++i) pages_[claim.first + i] = std::move(drawn[i]);
  return claim;
}

void Board::BeginSlice(RunningSlice slice) {
  slice.start = Now();
  slice.plans = planned_s_ == 0 && plan_->plan.finish_s > 0;
  if (slice.plans) planned_s_ = At(slice.start) + plan_->plan.finish_s;
  slice_ = slice;
  progressed_ = slice_->start;
  waiting_ = false;
}

void Board::NoteResident() {
  if (claims_.done() && !resident_) resident_ = Now();
}

double Board::Lateness() const {
  return planned_s_ > 0 ? At(resident_.value_or(Now())) - planned_s_ : 0;
}

void Board::PublishSlice(int chunks) {
  const RunningSlice slice = *slice_;
  Claim claim = slice.claim, rest = claim;
  claim.count = chunks;
  rest.first += chunks;
  rest.count -= chunks;
  const TimePoint now = Now();
  if (const double took_s = (now - slice.start).count();
      slice.predicted_s > 0 && took_s > 0 && rest.count == 0) {
    const double error = std::abs(slice.predicted_s / took_s - 1);
    report_.slice_error += (error - report_.slice_error) / ++report_.slices;
  }
  // What follows chunks of another path is ours to rounding only.
  const NumericPath path =
      first_mixed_ < claim.first ? NumericPath::kUnknown : context_.options.numeric_path;
  for (int i = claim.first; i < claim.end(); ++i) {
    if (!pages_[i]) continue;
    pages_[i] = context_.pool.Publish(std::move(pages_[i]), key(i), path);
    NotePath(i);
  }
  slice_.reset();
  if (rest.count > 0) claims_.Release(rest);
  if (claim.count == 0) {  // given back: it was no beginning
    if (slice.plans) planned_s_ = 0;
    return;
  }
  claims_.Publish(claim);
  NoteResident();
  report_.tokens_computed += claim.count * request_.chunk_tokens;
  report_.AddTimeline({.lane = "compute",
                       .first_token = claim.first * request_.chunk_tokens,
                       .tokens = claim.count * request_.chunk_tokens,
                       .start_s = At(slice.start),
                       .end_s = At(now)});
}

Claim Board::DropSlice() {
  const Claim claim = slice_->claim;
  claims_.Release(claim);
  slice_.reset();
  return claim;
}

void Board::set_plan(HeldPlan held) {
  plan_ = std::move(held);
  const Plan& plan = plan_->plan;
  std::fill(loads_left_.begin(), loads_left_.end(), 0);
  for (int i = claims_.first_missing(); i < claims_.size(); ++i) {
    if (plan.sides[i] != Side::kLoad || claims_.state(i) != ChunkState::kAbsent) continue;
    if (plan.tiers[i] >= 0) ++loads_left_[plan.tiers[i]];
  }
}

void Board::NoteTurn(const Plan& plan) {
  if (report_.predicted_s == 0 && plan.finish_s > 0) {
    report_.predicted_s = At(Now()) + plan.finish_s;
  }
  if (plan.slice_chunks > 0) {
    report_.AddReason(fmt::format("{} {} chunks at token {}", plan.reason, plan.slice_chunks,
                                  claims_.first_missing() * request_.chunk_tokens));
  } else {
    report_.AddReason(plan.reason);
  }
}

void Board::NoteRead(int chunk, std::string_view tier, TimePoint start, Outcome outcome) {
  report_.AddTimeline({.lane = std::string(tier),
                       .first_token = chunk * request_.chunk_tokens,
                       .tokens = request_.chunk_tokens,
                       .start_s = std::max(0.0, At(start)),  // it may be another prompt's read
                       .end_s = At(Now()),
                       .outcome = outcome});
}

RestoreProgress Board::Progress() const {
  int back = claims_.size();
  while (back > 0 && claims_.state(back - 1) == ChunkState::kResident) --back;
  return {.prompt_tokens = request_.prompt_tokens,
          .computed = report_.tokens_computed,
          .loaded = report_.loaded(),
          .reused = report_.tokens_reused,
          .mixed_path = mixes_paths(),
          .front = claims_.first_missing(),
          .back = back,
          .loading = claims_.loading(),
          .predicted_s = report_.predicted_s};
}

RestoreReport Board::Report() const {
  RestoreReport report = report_;
  const int full = claims_.size() * request_.chunk_tokens;
  report.tokens_computed += std::max(0, request_.prompt_tokens - full);
  report.meeting_token =
      first_loaded_ < 0 ? request_.prompt_tokens : first_loaded_ * request_.chunk_tokens;
  return report;
}

}  // namespace kvcake
