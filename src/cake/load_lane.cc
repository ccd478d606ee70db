// The load lane of a Restorer: which chunk to read next, and what to do with what comes back.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cake/restorer.h"

namespace kvcake {
namespace {

// A tier that was silent for so long is asked again after this share of it.
constexpr double kRetryShare = 1.0 / 30;

}  // namespace

void Restorer::OnRead(uint64_t number, ReadResult result) {
  std::unique_lock lock(mutex_);
  const auto it = reads_.find(number);
  CHECK(it != reads_.end());  // called exactly once
  Read read = std::move(it->second);
  reads_.erase(it);
  TierState& tier = tiers_[read.tier];
  std::erase(tier.queue, number);
  const bool ok = result.status.has_value();
  if (read.cancel) {
    tier.cost.OnLate(clock_.Now(), result.bytes);
  } else {
    tier.cost.OnDone(clock_.Now(), result.bytes);
  }
  if (ok) {
    tier.stalled.reset();
    for (Restoration* r : open_) r->failures_[read.tier] = 0;
  }

  const int chunk = read.claim.first;
  if (read.owner != nullptr) {
    Restoration& r = *read.owner;
    CHECK(r.claims_.Valid(read.claim));
    r.report_.AddTimeline({.lane = std::string(tier.tier->name()),
                           .first_token = chunk * r.request_.chunk_tokens,
                           .tokens = r.request_.chunk_tokens,
                           .start_s = std::max(0.0, r.At(read.start)),
                           .end_s = r.At(clock_.Now()),
                           .outcome = ok ? Outcome::kPublished : Outcome::kFailed});
    if (ok) {
      PageHandle page = pool_.Publish(std::move(read.page), read.key, result.numeric_path);
      r.claims_.Publish(read.claim);
      PublishChunk(chunk, read.key, page, &r);
      r.Loaded(chunk, tier.tier->name(), std::move(page));
    } else {
      FailRead(read, result.status.error().message);
    }
  } else if (ok && !owners_.contains(read.key)) {
    // Its restoration has gone, but the chunk is here and verified: whoever wants it may have it.
    PublishChunk(chunk, read.key,
                 pool_.Publish(std::move(read.page), read.key, result.numeric_path), nullptr);
  }
  read.page.Reset();
  Event();
  Calls calls;
  Pump(calls);
  Make(calls, lock);
  if (reads_.empty() && calling_ == 0) idle_.notify_all();
}

void Restorer::FailRead(Read& read, std::string_view why) {
  Restoration& r = *read.owner;
  r.claims_.Fail(read.claim, read.tier);
  Disown(r, read.claim);
  for (Restoration* other : open_) {  // it would fail for them as well
    if (other->Wants(read.claim.first, read.key)) {
      other->claims_.SetNotLoadable(read.claim.first, read.tier);
    }
  }
  ++r.failures_[read.tier];
  ++r.report_.chunks_failed;
  r.report_.AddReason(fmt::format("load of chunk {} from {} failed: {}", read.claim.first,
                                  tiers_[read.tier].tier->name(), why));
  read.owner = nullptr;
}

void Restorer::CheckStalls(Calls& calls) {
  const TimePoint now = clock_.Now();
  for (TierState& tier : tiers_) {
    if (tier.stalled) {
      // Asked again after a while, soon at first, when there is room for a read. Of those that were
      // cancelled some may never come back, and keep theirs.
      const TimePoint since = *tier.stalled;
      const Seconds silent = since - tier.cost.silent_since();
      const Seconds pause = std::min(options_.probe_interval, kRetryShare * silent);
      if (tier.looks > 0 || now - since <= pause) continue;
      tier.stalled.reset();
      if (!HasRoom(tier)) tier.stalled = since;
      continue;
    }
    if (tier.looks > 0 && now - tier.look_progress > options_.stall_timeout) {
      tier.stalled = now;  // and no reads are started; those in flight are the tier's to answer
      continue;
    }
    const TierEstimate& estimate = tier.cost.estimate();
    const Seconds expected(estimate.fixed_s +
                           estimate.IntervalFor(static_cast<double>(pool_.layout().page_bytes())));
    // Cancelled reads that never come back may leave no room for others.
    const bool blocked = tier.cost.in_flight() > 0 || (!tier.queue.empty() && !HasRoom(tier));
    if (!blocked ||
        now - tier.cost.last_progress() <= std::max(options_.stall_timeout, 8 * expected)) {
      continue;
    }
    tier.stalled = now;
    for (uint64_t number : tier.queue) {
      Read& read = reads_.at(number);
      if (read.owner != nullptr) FailRead(read, "nothing has come for too long");
      CancelRead(number, calls);
    }
    Event();
  }
}

bool Restorer::Usable(const TierState& tier) const {
  return !tier.stalled && tier.tier->max_reads_in_flight() > 0 &&
         pool_.layout().page_bytes() <= tier.tier->max_read_bytes_in_flight();
}

uint32_t Restorer::UsableTiers(const Restoration& r) const {
  uint32_t usable = 0;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (Usable(tiers_[t]) && r.Trusts(static_cast<int>(t))) usable |= 1u << t;
  }
  return usable;
}

bool Restorer::HasRoom(const TierState& tier) const {
  const uint64_t bytes = pool_.layout().page_bytes();
  const TierEstimate& estimate = tier.cost.estimate();
  int ahead = options_.reads_ahead;
  if (estimate.known) {  // enough to keep the link busy while requests are on their way
    const double hidden = estimate.fixed_s / estimate.IntervalFor(static_cast<double>(bytes));
    ahead = static_cast<int>(std::clamp<double>(std::ceil(hidden) + 2, ahead,
                                                std::max(ahead, options_.reads_ahead_max)));
  }
  const size_t limit = std::min(ahead, tier.tier->max_reads_in_flight());
  return Usable(tier) && tier.queue.size() < limit &&
         (tier.queue.size() + 1) * bytes <= tier.tier->max_read_bytes_in_flight();
}

void Restorer::Pump(Calls& calls) {
  no_page_ = false;
  documents_ = Documents();
  UpdateRanks();
  for (size_t t = 0; t < tiers_.size(); ++t) {
    while (PumpOne(static_cast<int>(t), calls)) {
    }
  }
}

// One read for the next restoration that wants one.
bool Restorer::PumpOne(int tier, Calls& calls) {
  if (!HasRoom(tiers_[tier])) return false;
  ranked_.clear();
  for (Restoration* r : open_) {
    if (r->MayLoad()) ranked_.push_back(r);
  }
  std::stable_sort(ranked_.begin(), ranked_.end(),
                   [](const auto* a, const auto* b) { return a->rank_ < b->rank_; });
  for (Restoration* r : ranked_) {
    const auto claim = ClaimLoad(*r, tier);
    if (!claim) continue;
    const bool started = StartRead(*r, tier, *claim, calls);
    if (ranked_.size() > 1) r->rank_ = Rank(*r, clock_.Now());
    return started;
  }
  return TakeFromSlower(tier, calls);
}

void Restorer::UpdateRanks() {
  if (open_.size() < 2) return;  // nobody asks
  const TimePoint now = clock_.Now();
  for (Restoration* r : open_) r->rank_ = Rank(*r, now);
}

double Restorer::Rank(const Restoration& r, TimePoint now) const {
  const uint32_t usable = UsableTiers(r);
  int left = 0;  // what loading has to do with
  for (int i = r.claims_.first_missing(); i < r.claims_.size(); ++i) {
    const ChunkState state = r.claims_.state(i);
    left += state == ChunkState::kLoading || state == ChunkState::kElsewhere ||
            (state == ChunkState::kAbsent && (r.claims_.tiers(i) & usable) != 0);
  }
  const double bytes = static_cast<double>(pool_.layout().page_bytes());
  double interval_s = INFINITY;
  for (const TierState& tier : tiers_) {
    const TierEstimate& estimate = tier.cost.estimate();
    if (estimate.known) interval_s = std::min(interval_s, estimate.IntervalFor(bytes));
  }
  constexpr double kUnknown = 1e-3;  // any: the same for all
  return LoadRank(options_.load_order,
                  {.remaining_s = left * (std::isfinite(interval_s) ? interval_s : kUnknown),
                   .age_s = (now - r.opened_).count(),
                   .serial = r.serial_,
                   .last_read = r.last_read_},
                  options_.load_aging);
}

std::optional<Claim> Restorer::ClaimLoad(Restoration& r, int tier) {
  if (!r.Trusts(tier)) return std::nullopt;
  bool any = false;
  for (int i = r.claims_.first_missing(); i < r.claims_.size() && !any; ++i) {
    any = r.claims_.state(i) == ChunkState::kAbsent && (r.claims_.tiers(i) >> tier & 1) != 0;
  }
  if (!any) return std::nullopt;
  UpdateEtas();
  const Plan plan = MakePlan(View(r, r.request_.slice_chunks_max), options_.planner);
  r.NotePlan(plan);
  std::vector<uint8_t> allowed(r.claims_.size());
  bool found = false;
  for (int i = r.claims_.first_missing(); i < r.claims_.size(); ++i) {
    if (r.claims_.state(i) != ChunkState::kAbsent) continue;
    // There compute will wait for all before it: that is read first.
    if (plan.sides[i] == Side::kCompute && found) break;
    allowed[i] = plan.sides[i] != Side::kCompute && (plan.tiers[i] < 0 || plan.tiers[i] == tier);
    found = found || (allowed[i] && (r.claims_.tiers(i) >> tier & 1) != 0);
  }
  if (auto claim = r.claims_.ClaimBack(tier, allowed)) return claim;
  return ClaimProbe(r, tier, plan);
}

// A link that was slow once may be fast now: one read will tell. Of the chunk that the other tiers
// would load last, so that nobody misses it; compute or they can overtake it.
std::optional<Claim> Restorer::ClaimProbe(Restoration& r, int tier, const Plan& plan) {
  const TierState& state = tiers_[tier];
  if (!state.queue.empty() || state.cost.measured_since(clock_.Now() - options_.probe_interval)) {
    return std::nullopt;
  }
  std::vector<uint8_t> allowed(r.claims_.size());
  for (size_t i = 0; i < allowed.size(); ++i) {
    const int chunk = static_cast<int>(i);
    allowed[i] = plan.sides[i] == Side::kLoad && (r.claims_.tiers(chunk) >> tier & 1) != 0 &&
                 r.claims_.state(chunk) == ChunkState::kAbsent;
    if (allowed[i]) return r.claims_.ClaimBack(tier, allowed);
  }
  if (r.FixedSplit()) return std::nullopt;
  return r.claims_.ClaimBack(tier);
}

// Has this tier read what another is expected to deliver later than it would: rates change, and a
// chunk may have been given to a tier before anything was known of it.
bool Restorer::TakeFromSlower(int tier, Calls& calls) {
  constexpr double kGainMin = 1.25;
  const TierState& state = tiers_[tier];
  if (tiers_.size() < 2 || !state.cost.estimate().known) return false;
  UpdateEtas();
  const double bytes = static_cast<double>(pool_.layout().page_bytes());
  double latest = kGainMin * (state.drain_s + state.cost.estimate().IntervalFor(bytes));
  std::optional<uint64_t> slowest;
  for (const auto& [number, read] : reads_) {
    if (read.owner == nullptr || read.tier == tier || read.eta_s <= latest) continue;
    const Restoration& r = *read.owner;
    if ((r.claims_.tiers(read.claim.first) >> tier & 1) == 0 || !r.Trusts(tier)) continue;
    latest = read.eta_s;
    slowest = number;
  }
  if (!slowest) return false;
  if (!pool_.Draw()) {  // and given back at once, for StartRead
    no_page_ = true;
    return false;
  }
  Read& read = reads_.at(*slowest);
  Restoration& r = *read.owner;
  const int chunk = read.claim.first;
  r.report_.AddReason(fmt::format("chunk {} is read from {} instead of {}: it will be sooner",
                                  chunk, state.tier->name(), tiers_[read.tier].tier->name()));
  // The other is not asked for it again, or two would take it from each other for ever; and one
  // that lets this happen time after time is not asked for anything.
  r.claims_.Fail(read.claim, read.tier);
  ++r.failures_[read.tier];
  Disown(r, read.claim);
  CancelRead(*slowest, calls);
  std::vector<uint8_t> allowed(r.claims_.size());
  allowed[chunk] = 1;
  const auto claim = r.claims_.ClaimBack(tier, allowed);
  CHECK(claim.has_value());
  return StartRead(r, tier, *claim, calls);
}

bool Restorer::StartRead(Restoration& r, int tier, const Claim& claim, Calls& calls) {
  auto page = pool_.Draw();
  if (!page) {  // every page is in use; the next event or turn tries again
    r.claims_.Release(claim);
    no_page_ = true;
    return false;
  }
  const int chunk = claim.first;
  const auto& keys = r.request_.keys;
  const uint64_t number = next_read_++;
  calls.get_reads.push_back(number);
  calls.gets.emplace_back(
      tier, ReadRequest{
                .key = keys[chunk],
                .parent = chunk == 0 ? r.request_.root : keys[chunk - 1],
                .landing = pool_.LandingFor(page->id(), Codec::kRaw),
                .done = [this, number](ReadResult result) { OnRead(number, std::move(result)); }});
  r.last_read_ = number;
  if (r.loads_left_[tier] > 0) --r.loads_left_[tier];
  Read read;
  read.owner = &r;
  read.claim = claim;
  read.key = keys[chunk];
  read.tier = tier;
  read.page = std::move(*page);
  read.start = clock_.Now();
  reads_.emplace(number, std::move(read));
  tiers_[tier].queue.push_back(number);
  tiers_[tier].cost.OnStart(clock_.Now());
  Claimed(r, claim);
  return true;
}

// When the reads in flight should complete: in order of issue, at the tier's rate.
void Restorer::UpdateEtas() {
  const TimePoint now = clock_.Now();
  const double bytes = static_cast<double>(pool_.layout().page_bytes());
  for (TierState& tier : tiers_) {
    const TierEstimate& estimate = tier.cost.estimate();
    const double interval = estimate.IntervalFor(bytes);
    double s = (tier.cost.last_progress() - now).count();
    bool head = true;
    for (uint64_t number : tier.queue) {
      Read& read = reads_.at(number);
      if (read.cancel && read.id) continue;  // on its way out
      s = std::max(s, (read.start - now).count() + estimate.fixed_s) + interval;
      // Overdue: it may take as long again.
      if (head && s < 0) s = -s;
      head = false;
      read.eta_s = std::max(s, 0.0);
    }
    if (head && !tier.queue.empty()) {
      // Only cancelled reads, which take up room until they are back. What is overdue may take as
      // long again.
      s = (now - tier.cost.last_progress()).count() - estimate.fixed_s - interval;
    }
    tier.drain_s = tier.queue.empty() ? estimate.fixed_s : std::max(s, estimate.fixed_s);
  }
}

// Requests on one document share their loads; different documents share the link: one after the
// other, or all at once.
TierView Restorer::ViewTier(const Restoration& r, int number) const {
  const TierState& tier = tiers_[number];
  const TierEstimate& estimate = tier.cost.estimate();
  TierView view;
  view.known = estimate.known;
  view.interval_s = estimate.IntervalFor(static_cast<double>(pool_.layout().page_bytes()));
  view.drain_s = tier.drain_s;
  if (options_.load_order == LoadOrder::kFair) {
    view.interval_s *= documents_;
  } else if (open_.size() > 1) {
    const std::pair rank(r.rank_, r.serial_);
    for (const Restoration* other : open_) {
      if (other == &r || !other->MayLoad()) continue;
      if (SameDocument(*other, r) || std::pair(other->rank_, other->serial_) > rank) continue;
      view.drain_s += other->loads_left_[number] * view.interval_s;
    }
  }
  view.waited_s = tier.queue.empty() ? INFINITY : (clock_.Now() - tier.cost.silent_since()).count();
  return view;
}

const PlanInput& Restorer::View(const Restoration& r, int budget_chunks) {
  using State = ChunkView::State;
  input_.compute = cost_.fit();
  input_.chunk_tokens = r.request_.chunk_tokens;
  input_.slice_chunks_max = r.request_.slice_chunks_max;
  input_.budget_chunks = std::min(budget_chunks, r.request_.slice_chunks_max);
  if (r.share_ > 0 && r.share_ < 1) {  // a slice takes whole steps, however short it is
    const double step_tokens = input_.slice_chunks_max * input_.chunk_tokens;
    const double chunks = r.share_ * input_.slice_chunks_max;
    input_.slice_chunks_max = std::max(1, static_cast<int>(chunks));
    input_.compute = input_.compute.InSteps(input_.slice_chunks_max / chunks, step_tokens);
  }
  input_.waiting = r.waiting_;
  input_.predict = r.request_.policy != Policy::kPublished;
  input_.fixed_split = r.FixedSplit();
  // Nobody computes this document now: all of it is to be loaded.
  const bool computed = std::any_of(open_.begin(), open_.end(), [&](const Restoration* other) {
    return other->share_ > 0 && (other == &r || SameDocument(*other, r));
  });
  if (!computed && r.WantsLoads() && !input_.fixed_split) input_.fixed_split = 0;
  input_.tiers.clear();
  for (size_t t = 0; t < tiers_.size(); ++t) {
    input_.tiers.push_back(ViewTier(r, static_cast<int>(t)));
  }
  const uint32_t usable = UsableTiers(r);
  const int n = r.claims_.size();
  input_.chunks.assign(n, {});
  for (int i = 0; i < n; ++i) {
    ChunkView& view = input_.chunks[i];
    view.tiers = r.claims_.tiers(i) & usable;
    switch (r.claims_.state(i)) {
      case ChunkState::kAbsent:
        break;
      case ChunkState::kElsewhere:  // unless a read of it is found below
        view.state = State::kComputing;
        break;
      case ChunkState::kLoading:
        view.state = State::kInFlight;
        break;
      case ChunkState::kComputing:
      case ChunkState::kResident:
        view.state = State::kResident;
        break;
    }
  }
  for (const auto& [number, read] : reads_) {
    const int chunk = read.claim.first;
    if (read.owner == nullptr || chunk >= n || r.request_.keys[chunk] != read.key) continue;
    // It may be resident here: published by others since the read began.
    const State state = input_.chunks[chunk].state;
    if (state != State::kInFlight && state != State::kComputing) continue;
    input_.chunks[chunk].state = State::kInFlight;
    input_.chunks[chunk].eta_s = read.eta_s;
  }
  input_.compute_busy_s = 0;
  for (const Restoration* other : open_) {
    if (!other->computing_) continue;
    const double elapsed = (clock_.Now() - other->slice_start_).count();
    const double left = other->slice_predicted_s_ - elapsed;
    input_.compute_busy_s = std::max({input_.compute_busy_s, left, -left});
  }
  return input_;
}

// One is the beginning of the other, or the same: keys are hashes of all before them.
bool Restorer::SameDocument(const Restoration& a, const Restoration& b) {
  const size_t n = std::min(a.request_.keys.size(), b.request_.keys.size());
  return n > 0 && a.request_.keys[n - 1] == b.request_.keys[n - 1];
}

int Restorer::Documents() const {
  if (options_.load_order != LoadOrder::kFair) return 1;
  std::vector<const Restoration*> documents;
  for (const Restoration* r : open_) {
    if (!r->MayLoad()) continue;
    const auto same = [&](const Restoration* other) { return SameDocument(*r, *other); };
    if (std::none_of(documents.begin(), documents.end(), same)) documents.push_back(r);
  }
  return std::max<int>(1, static_cast<int>(documents.size()));
}

}  // namespace kvcake
