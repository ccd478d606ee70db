#include "cake/load_lane.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvcake {
namespace {

// A tier that was silent for so long is asked again after this share of it.
constexpr double kRetryShare = 1.0 / 30;

}  // namespace

LoadLane::LoadLane(const RestoreContext& context, const Tier& tier)
    : context_(context),
      name_(tier.name()),
      reads_max_(std::min<uint64_t>(
          std::max(0, tier.max_reads_in_flight()),
          tier.max_read_bytes_in_flight() / context.pool.layout().page_bytes())) {}

bool LoadLane::Usable() const { return !stalled_ && reads_max_ > 0; }

bool LoadLane::HasRoom() const {
  if (!Usable() || reads_.size() >= reads_max_) return false;
  int ahead = context_.options.reads_ahead;
  if (estimate().known) {  // enough to keep the link busy while requests are on their way
    const double hidden = estimate().fixed_s / interval_s();
    const int most = std::max(ahead, context_.options.reads_ahead_max);
    ahead = static_cast<int>(std::clamp<double>(std::ceil(hidden) + 2, ahead, most));
  }
  return reads_.size() < static_cast<size_t>(ahead);
}

void LoadLane::Start(uint64_t number, LaneRead read) {
  cost_.OnStart(read.start);
  reads_.emplace(number, std::move(read));
}

bool LoadLane::Issued(uint64_t number, ReadId id) {
  const auto it = reads_.find(number);
  if (it == reads_.end()) return false;
  it->second.id = id;
  return it->second.cancelled;
}

std::optional<ReadId> LoadLane::Cancel(uint64_t number) {
  LaneRead& read = reads_.at(number);
  read.owner = nullptr;
  if (std::exchange(read.cancelled, true)) return std::nullopt;
  cost_.OnCancel();
  return read.id;
}

LaneRead LoadLane::End(uint64_t number, const ReadResult& result) {
  const bool ok = result.status.has_value();
  auto node = reads_.extract(number);
  CHECK(!node.empty());  // called exactly once
  LaneRead& read = node.mapped();
  if (read.cancelled) {
    cost_.OnLate(Now(), result.bytes);
  } else {
    cost_.OnDone(Now(), result.bytes);
  }
  if (ok) stalled_.reset(), ++delivered_, cost_.AddCore(result.core_s);
  return std::move(read);
}

bool LoadLane::CheckStall() {
  const TimePoint now = Now();
  if (stalled_) {
    // Asked again after a while, soon at first, when there is room for a read: some of those that
    // were cancelled may never come back, and keep theirs.
    const TimePoint since = *stalled_;
    const Seconds silent = since - cost_.silent_since();
    const Seconds pause = std::min(context_.options.probe_interval, kRetryShare * silent);
    if (looks_ > 0 || now - since <= pause) return false;
    stalled_.reset();
    if (!HasRoom()) stalled_ = since;
    return false;
  }
  if (looks_ > 0 && now - look_progress_ > context_.options.stall_timeout) {
    stalled_ = now;  // and no reads are started; those in flight are the tier's to answer
    return false;
  }
  const Seconds expected(estimate().fixed_s + interval_s());
  // Cancelled reads that never come back may leave no room for others.
  const bool blocked = cost_.in_flight() > 0 || (!reads_.empty() && !HasRoom());
  if (!blocked ||
      now - cost_.last_progress() <= std::max(context_.options.stall_timeout, 8 * expected)) {
    return false;
  }
  stalled_ = now;
  return true;
}

void LoadLane::BeginLook() {
  if (looks_++ == 0) look_progress_ = Now();
}

void LoadLane::NoteAnswer() {
  look_progress_ = Now();
  if (reads_.empty()) stalled_.reset();
}

void LoadLane::UpdateEtas() {
  const TimePoint now = Now();
  const double fixed_s = estimate().fixed_s, interval = interval_s();
  double s = (cost_.last_progress() - now).count();
  bool head = true;
  for (auto& [number, read] : reads_) {
    if (read.cancelled && read.id) continue;  // on its way out
    s = std::max(s, (read.start - now).count() + fixed_s) + interval;
    // Overdue: it may take as long again.
    if (head && s < 0) s = -s;
    head = false;
    read.eta_s = std::max(s, 0.0);
  }
  if (head && !reads_.empty()) {
    // Only cancelled reads, which take up room until they are back. What is overdue may take as
    // long again.
    s = (now - cost_.last_progress()).count() - fixed_s - interval;
  }
  drain_s_ = reads_.empty() ? fixed_s : std::max(s, fixed_s);
}

TierView LoadLane::View() const {
  return {.known = estimate().known,
          .interval_s = interval_s(),
          .beside_s = estimate().beside_s + estimate().core_s / context_.options.cores,
          .drain_s = drain_s_,
          .waited_s = reads_.empty() ? INFINITY : (Now() - cost_.silent_since()).count()};
}

bool LoadLane::WantsProbe() const {
  return reads_.empty() && !cost_.measured_since(Now() - context_.options.probe_interval);
}

}  // namespace kvcake
