#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cake/restorer.h"

namespace kvcake {
namespace {

constexpr Seconds kPageRetry{10e-3};  // nobody tells when a page becomes free

// Adds the (real) time of a scope.
class Stopwatch {
 public:
  explicit Stopwatch(double* sum) : sum_(*sum) {}
  ~Stopwatch() { sum_ += (Clock::Real().Now() - began_).count(); }

 private:
  double& sum_;
  const TimePoint began_ = Clock::Real().Now();
};

}  // namespace

Restoration::Restoration(Restorer& restorer, RestoreRequest request)
    : restorer_(restorer),
      request_(std::move(request)),
      opened_(restorer.clock_.Now()),
      claims_(static_cast<int>(request_.keys.size())),
      pages_(request_.keys.size()),
      progressed_(opened_),
      loads_left_(restorer.tiers_.size()),
      first_mixed_(claims_.size()),
      failures_(restorer.tiers_.size()) {
  report_.policy = request_.policy;
  report_.chunk_tokens = request_.chunk_tokens;
  report_.prompt_tokens = request_.prompt_tokens;
}

Restoration::~Restoration() { Abandon(); }

std::optional<int> Restoration::FixedSplit() const {
  if (request_.policy == Policy::kCompute) return claims_.size();
  if (request_.policy == Policy::kLoad) return 0;
  return request_.forced_split;
}

bool Restoration::Wants(int chunk, const ChunkKey& key) const {
  return chunk < claims_.size() && request_.keys[chunk] == key &&
         claims_.state(chunk) != ChunkState::kResident;
}

void Restoration::Loaded(int chunk, std::string_view tier, PageHandle page) {
  pages_[chunk] = std::move(page);
  progressed_ = restorer_.clock_.Now();
  report_.tokens_loaded[std::string(tier)] += request_.chunk_tokens;
  if (first_loaded_ < 0 || chunk < first_loaded_) first_loaded_ = chunk;
  NotePath(chunk);
}

void Restoration::Adopt(int chunk, PageHandle page) {
  pages_[chunk] = std::move(page);
  claims_.Adopt(chunk);
  progressed_ = restorer_.clock_.Now();
  report_.tokens_reused += request_.chunk_tokens;
  initial_[chunk].state = ChunkView::State::kResident;
  NotePath(chunk);
}

void Restoration::NotePath(int chunk) {
  if (restorer_.pool_.path(pages_[chunk].id()) == restorer_.options_.numeric_path) return;
  ++report_.chunks_mixed_path;
  first_mixed_ = std::min(first_mixed_, chunk);
}

ComputeTurn Restoration::NextTurn(const ComputeBudget& budget) {
  std::unique_lock lock(restorer_.mutex_);
  CHECK(!closed_ && budget.chunks >= 0 && budget.share >= 0);
  const Stopwatch stopwatch(&report_.planning_s);
  ++report_.turns;
  if (claims_.done()) return {.kind = ComputeTurn::Kind::kDone};
  Restorer::Calls calls;
  restorer_.CheckStalls(calls);
  const ComputeTurn turn = Turn(budget, calls);
  restorer_.Make(calls, lock);
  return turn;
}

ComputeTurn Restoration::Turn(const ComputeBudget& budget, Restorer::Calls& calls) {
  const TimePoint now = restorer_.clock_.Now();
  ComputeTurn turn{.kind = ComputeTurn::Kind::kWait};
  if (computing_) {
    turn.wait_until = now + kPageRetry;
    return turn;
  }
  if (AwaitsLooks()) {
    report_.AddReason("waiting to hear what is stored");
    turn.wait_until = look_until_;
    return turn;
  }
  share_ = budget.share;
  restorer_.Pump(calls);
  restorer_.UpdateEtas();
  const Plan plan =
      MakePlan(restorer_.View(*this, std::max(1, budget.chunks)), restorer_.options_.planner);
  NotePlan(plan);
  if (plan.slice_chunks > 0 && budget.chunks == 0) {
    return {.kind = ComputeTurn::Kind::kStarved, .claim = {.first = claims_.first_missing()}};
  }
  if (plan.slice_chunks > 0) {
    turn = StartSlice(plan, calls);
  } else if (share_ == 0) {
    report_.AddReason("other requests have the compute: loads only");
    turn.wait_until = now + Seconds(plan.wait_s);
  } else {
    NoteTurn(plan);
    waiting_ = true;
    turn.wait_until = now + Seconds(plan.wait_s);
  }
  if (turn.kind == ComputeTurn::Kind::kSlice) restorer_.Pump(calls);
  if (turn.kind == ComputeTurn::Kind::kWait && restorer_.no_page_) {
    turn.wait_until = std::min(turn.wait_until, now + kPageRetry);
  }
  return turn;
}

bool Restoration::AwaitsLooks() const {
  if (looking_ == 0 || restorer_.clock_.Now() >= look_until_) return false;
  for (size_t t = 0; t < restorer_.tiers_.size(); ++t) {
    if ((looking_ >> t & 1) != 0 && !restorer_.tiers_[t].stalled) return true;
  }
  return false;
}

ComputeTurn Restoration::StartSlice(const Plan& plan, Restorer::Calls& calls) {
  const TimePoint now = restorer_.clock_.Now();
  PageTable drawn;
  while (static_cast<int>(drawn.size()) < plan.slice_chunks) {
    auto page = restorer_.pool_.Draw();
    if (!page) break;
    drawn.push_back(std::move(*page));
  }
  if (drawn.empty()) {
    report_.AddReason("waiting for a free page");
    return {.kind = ComputeTurn::Kind::kWait, .wait_until = now + kPageRetry};
  }
  NoteTurn(plan);
  std::vector<int> taken;
  const Claim claim =
      claims_.ClaimFront(static_cast<int>(drawn.size()), /*take_over=*/true, &taken);
  CHECK(claim.count == static_cast<int>(drawn.size()));
  for (int chunk : taken) restorer_.TakeOver(*this, chunk, calls);
  restorer_.Claimed(*this, claim);
  for (int i = 0; i < claim.count; ++i) pages_[claim.first + i] = std::move(drawn[i]);
  computing_ = claim;
  slice_start_ = now;
  progressed_ = now;
  // Others fill a step that is shared.
  const int chunks = share_ < 1 ? request_.slice_chunks_max : claim.count;
  slice_predicted_s_ = restorer_.cost_.fit().SecondsFor(claim.first * request_.chunk_tokens,
                                                        chunks * request_.chunk_tokens);
  waiting_ = false;
  return {.kind = ComputeTurn::Kind::kSlice, .claim = claim};
}

void Restoration::NotePlan(const Plan& plan) {
  std::fill(loads_left_.begin(), loads_left_.end(), 0);
  for (int i = claims_.first_missing(); i < claims_.size(); ++i) {
    if (plan.sides[i] != Side::kLoad || claims_.state(i) != ChunkState::kAbsent) continue;
    if (plan.tiers[i] >= 0) ++loads_left_[plan.tiers[i]];
  }
}

ComputeNeed Restoration::Need() const {
  std::lock_guard lock(restorer_.mutex_);
  CHECK(!closed_);
  ComputeNeed need{.rank = rank_};
  if (AwaitsLooks()) return need;
  if (claims_.first_missing() < FixedSplit().value_or(claims_.size())) {
    need.idle = restorer_.clock_.Now() - progressed_;
  }
  const uint32_t tiers = restorer_.UsableTiers(*this);
  const int compute_end = WantsLoads() ? request_.forced_split.value_or(0) : claims_.size();
  for (int i = claims_.first_missing(); i < claims_.size(); ++i, ++need.fresh_chunks) {
    if (claims_.state(i) != ChunkState::kAbsent) break;
    if (i >= compute_end && (claims_.tiers(i) & tiers) != 0) break;
  }
  need.fresh_s = restorer_.cost_.fit().SecondsFor(claims_.first_missing() * request_.chunk_tokens,
                                                  need.fresh_chunks * request_.chunk_tokens);
  return need;
}

// What the cost model said of the slice that has ended.
void Restoration::NoteSlice() {
  const double took_s = (restorer_.clock_.Now() - slice_start_).count();
  if (slice_predicted_s_ <= 0 || took_s <= 0) return;
  const double error = std::abs(slice_predicted_s_ / took_s - 1);
  report_.slice_error += (error - report_.slice_error) / ++report_.slices;
}

void Restoration::NoteTurn(const Plan& plan) {
  if (report_.predicted_s == 0 && plan.finish_s > 0) {
    report_.predicted_s = At(restorer_.clock_.Now()) + plan.finish_s;
  }
  if (plan.slice_chunks > 0) {
    report_.AddReason(fmt::format("{} {} chunks at token {}", plan.reason, plan.slice_chunks,
                                  claims_.first_missing() * request_.chunk_tokens));
  } else {
    report_.AddReason(plan.reason);
  }
}

std::vector<PageId> Restoration::PageIds(int chunks) const {
  std::lock_guard lock(restorer_.mutex_);
  CHECK(chunks >= 0 && chunks <= claims_.size() && !closed_);
  CHECK(chunks <= std::max(claims_.first_missing(), computing_ ? computing_->end() : 0));
  return IdsOf(std::span(pages_).first(chunks));
}

void Restoration::Computed(const Claim& claim, Seconds took) {
  std::unique_lock lock(restorer_.mutex_);
  CHECK(!closed_ && computing_ && computing_->generation == claim.generation);
  const Stopwatch stopwatch(&report_.planning_s);
  NoteSlice();
  // What follows chunks of another path is ours to rounding only.
  const NumericPath path =
      first_mixed_ < claim.first ? NumericPath::kUnknown : restorer_.options_.numeric_path;
  for (int i = claim.first; i < claim.end(); ++i) {
    pages_[i] = restorer_.pool_.Publish(std::move(pages_[i]), request_.keys[i], path);
    NotePath(i);
  }
  claims_.Publish(claim);
  for (int i = claim.first; i < claim.end(); ++i) {
    restorer_.PublishChunk(i, request_.keys[i], pages_[i], this);
  }
  computing_.reset();
  report_.tokens_computed += claim.count * request_.chunk_tokens;
  report_.AddTimeline({.lane = "compute",
                       .first_token = claim.first * request_.chunk_tokens,
                       .tokens = claim.count * request_.chunk_tokens,
                       .start_s = At(slice_start_),
                       .end_s = At(restorer_.clock_.Now())});
  restorer_.cost_.Add(claim.first * request_.chunk_tokens, claim.count * request_.chunk_tokens,
                      took);
  restorer_.Event();
  Restorer::Calls calls;
  restorer_.Pump(calls);
  restorer_.Make(calls, lock);
}

void Restoration::Abandon() {
  std::unique_lock lock(restorer_.mutex_);
  Restorer::Calls calls;
  restorer_.Close(*this, calls);
  restorer_.Make(calls, lock);
}

RestoreProgress Restoration::Progress() const {
  std::lock_guard lock(restorer_.mutex_);
  return {.prompt_tokens = request_.prompt_tokens,
          .computed = report_.tokens_computed,
          .loaded = report_.loaded(),
          .reused = report_.tokens_reused,
          .mixed_path = report_.chunks_mixed_path > 0};
}

bool Restoration::done() const {
  std::lock_guard lock(restorer_.mutex_);
  return claims_.done();
}

PageTable Restoration::TakePages() {
  std::unique_lock lock(restorer_.mutex_);
  CHECK(!closed_ && claims_.done());
  report_.restored_s = At(restorer_.clock_.Now());
  PageTable pages = std::move(pages_);
  Restorer::Calls calls;
  restorer_.Close(*this, calls);
  restorer_.Make(calls, lock);
  return pages;
}

RestoreReport Restoration::Report(std::optional<Seconds> tail) const {
  std::lock_guard lock(restorer_.mutex_);
  RestoreReport report = report_;
  const int full = claims_.size() * request_.chunk_tokens;
  report.tokens_computed += std::max(0, request_.prompt_tokens - full);
  report.meeting_token =
      first_loaded_ < 0 ? request_.prompt_tokens : first_loaded_ * request_.chunk_tokens;
  report.bound_s = Bound(tail);
  return report;
}

double Restoration::Bound(std::optional<Seconds> tail) const {
  PlanInput input;
  input.compute = restorer_.cost_.fit();
  if (!input.compute.known()) return 0;
  input.chunk_tokens = request_.chunk_tokens;
  input.slice_chunks_max = request_.slice_chunks_max;
  const double bytes = static_cast<double>(restorer_.pool_.layout().page_bytes());
  uint32_t known = 0;
  for (size_t t = 0; t < restorer_.tiers_.size(); ++t) {
    const TierEstimate& estimate = restorer_.tiers_[t].cost.estimate();
    input.tiers.push_back(
        {.known = true, .interval_s = estimate.IntervalFor(bytes), .drain_s = estimate.fixed_s});
    if (estimate.known) known |= 1u << t;
  }
  input.chunks = initial_;
  for (ChunkView& chunk : input.chunks) chunk.tiers &= known;
  const double restored =
      MakePlan(input, {.compute_gain_min = 0, .compute_gain_min_s = 0}).finish_s;
  const int full = claims_.size() * request_.chunk_tokens;
  const int rest = std::max(1, request_.prompt_tokens - full);  // logits need one token at least
  return restored + (tail ? tail->count() : input.compute.SecondsFor(full, rest));
}

}  // namespace kvcake
