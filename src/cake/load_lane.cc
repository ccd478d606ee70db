#include "cake/load_lane.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace kvcake {
namespace {

// A tier that was silent for so long is asked again after this share of it.
constexpr double kRetryShare = 1.0 / 30;
constexpr Seconds kQuiet{60};

}  // namespace

LoadLane::LoadLane(const RestoreContext& context, const Tier& tier)
    : context_(context),
      name_(tier.name()),
      reads_max_(std::min<uint64_t>(
          std::max(0, tier.max_reads_in_flight()),
          tier.max_read_bytes_in_flight() / context.pool.layout().page_bytes())) {}

bool LoadLane::Usable() const { return !stalled() && reads_max_ > 0; }

bool LoadLane::HasRoom() const {
  if (!Usable() || reads_.size() >= reads_max_) return false;
  int ahead = context_.options.reads_ahead;
  if (estimate().known) {  // enough to keep the link busy while requests are on their way
    const double hidden = estimate().fixed_s / interval_s();
    const int most = std::max(ahead, context_.options.reads_ahead_max);
    ahead = static_cast<int>(std::clamp<double>(std::ceil(hidden) + 2, ahead, most));
  }
  return reads_due() < static_cast<size_t>(ahead);
}

size_t LoadLane::reads_due() const {
  return std::ranges::count_if(reads_,
                               [&](const auto& read) { return !IsLost(read.first, read.second); });
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
  if (ok) {
    Answered();
    ++delivered_;
    newest_delivered_ = std::max(newest_delivered_, number);
    cost_.AddCore(result.core_s);
  }
  return std::move(read);
}

// Each once: what it holds until it is back, if ever.
void LoadLane::TellOfLost() {
  const Seconds timeout = context_.options.stall_timeout;
  for (auto& [number, read] : reads_) {
    if (read.told || !IsLost(number, read) || Now() - read.start <= timeout) continue;
    read.told = true;
    spdlog::warn(
        "store: a read from {} that others have overtaken has not ended for {:.0f} s: it keeps its "
        "memory and one of {} places until it does",
        name_, timeout.count(), reads_max_);
  }
}

bool LoadLane::CheckStall() {
  const TimePoint now = Now();
  TellOfLost();
  if (stalled()) {
    // Asked again when there is room for a read: some of those that were cancelled may never come
    // back, and keep theirs.
    if (now <= *stalled_until_) return false;
    const auto until = std::exchange(stalled_until_, std::nullopt);
    if (!HasRoom()) stalled_until_ = until;
    return false;
  }
  const Seconds timeout = context_.options.stall_timeout;
  const Seconds expected(estimate().fixed_s + interval_s());
  // Cancelled reads that never come back may leave no room for others.
  const bool blocked = cost_.in_flight() > 0 || (!reads_.empty() && !HasRoom());
  if (blocked && now - cost_.last_progress() > std::max(timeout, 8 * expected)) {
    GiveUp(cost_.silent_since());
    return true;
  }
  // No reads are started then; those in flight are the tier's to answer.
  const TimePoint progress = std::max(look_progress_, cost_.last_progress());
  if (looks_ > lost_looks_ && now - progress > timeout) GiveUp(progress);
  return false;
}

// Tries it again after a while, soon at first.
void LoadLane::GiveUp(TimePoint silent_since) {
  const TimePoint now = Now();
  const Seconds silent = now - silent_since;
  stalled_until_ = now + std::min(context_.options.probe_interval, kRetryShare * silent);
  lost_looks_ = looks_;
  if (logged_ || now < quiet_until_) return;
  logged_ = true;
  quiet_until_ = now + kQuiet;
  spdlog::warn(
      "store: nothing has come from {} for {:.0f} s: its chunks are computed, and it is asked "
      "again after a while",
      name_, silent.count());
}

void LoadLane::Answered() {
  stalled_until_.reset();
  if (std::exchange(logged_, false)) spdlog::info("store: {} answers again", name_);
}

void LoadLane::BeginLook() {
  if (looks_++ == lost_looks_) look_progress_ = Now();
}

void LoadLane::NoteAnswer() {
  look_progress_ = Now();
  if (reads_.empty()) Answered();
}

// Nobody says which of them has ended: the lost ones are taken to be the last.
void LoadLane::EndLook() { lost_looks_ = std::min(lost_looks_, --looks_); }

void LoadLane::UpdateEtas() {
  const TimePoint now = Now();
  const double fixed_s = estimate().fixed_s, interval = interval_s();
  double s = (cost_.last_progress() - now).count();
  bool head = true;
  const size_t due = reads_due();
  for (auto& [number, read] : reads_) {
    if (read.cancelled && read.id) continue;  // on its way out
    s = std::max(s, (read.start - now).count() + fixed_s) + interval;
    // Overdue: it may take as long again.
    if (head && s < 0) s = -s;
    head = false;
    read.eta_s = std::max(s, 0.0);
  }
  if (head && due > 0) {
    // Only cancelled reads, which take up room until they are back. What is overdue may take as
    // long again.
    s = (now - cost_.last_progress()).count() - fixed_s - interval;
  }
  drain_s_ = due == 0 ? fixed_s : std::max(s, fixed_s);
}

TierView LoadLane::View() const {
  return {.known = estimate().known,
          .interval_s = interval_s(),
          .beside_s = estimate().beside_s + estimate().core_s / context_.options.cores,
          .drain_s = drain_s_,
          .waited_s = reads_due() == 0 ? INFINITY : (Now() - cost_.silent_since()).count()};
}

bool LoadLane::WantsProbe() const {
  if (cost_.in_flight() > 0 || !HasRoom()) return false;
  if (reads_.empty()) return !cost_.measured_since(Now() - context_.options.probe_interval);
  const Seconds soon = kRetryShare * context_.options.probe_interval;
  return estimate().known && !cost_.measured_since(Now() - soon);
}

}  // namespace kvcake
