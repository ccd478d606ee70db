#include "sim/sim_tier.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "sim/chance.h"

namespace kvcake {
namespace {

constexpr int kGarbage = 0xdb;

}  // namespace

SimTier::SimTier(SimTierOptions options, FakeClock& clock, uint64_t seed)
    : options_(std::move(options)), clock_(clock), rng_(seed) {}

TimePoint SimTier::NextEvent() const {
  if (!ended_.empty()) return clock_.Now();
  return std::min(head_done_.value_or(kNever), looks_.empty() ? kNever : looks_.front().due);
}

void SimTier::Advance() {
  while (!looks_.empty() && looks_.front().due <= clock_.Now()) {
    AskedFor look = std::move(looks_.front());
    looks_.pop_front();
    Answer(std::move(look));
  }
  while (!ended_.empty() || (head_done_ && *head_done_ <= clock_.Now())) {
    auto& from = ended_.empty() ? queue_ : ended_;
    Read read = std::move(from.front());
    from.pop_front();
    if (&from == &queue_) {
      link_free_ = *head_done_;
      head_done_.reset();
      StartHead();
    }
    Deliver(std::move(read));
  }
}

void SimTier::Deliver(Read read) {
  ReadResult result{.status = read.status};
  const auto landing = read.request.landing;
  if (read.status) {
    std::memcpy(landing.data(), &read.request.key, sizeof(ChunkKey));
    result.bytes = landing.size();
    ++stats_.reads;
    stats_.read_bytes += result.bytes;
  } else {
    std::memset(landing.data(), kGarbage, sizeof(ChunkKey));
    ++stats_.reads_failed;
  }
  read.request.done(std::move(result));
}

void SimTier::Answer(AskedFor look) {
  const auto& keys = look.request.keys;
  const size_t end = look.answered == 0 ? (keys.size() + 1) / 2 : keys.size();
  std::vector<bool> held;
  for (size_t i = look.answered; i < end; ++i) held.push_back(held_.contains(keys[i]));
  if (!look.request.found(look.answered, held) || end == keys.size()) return;
  look.answered = end;
  look.due += Seconds(std::isfinite(options_.look_s) ? options_.look_s / 2 : 0);
  const auto later = [&](const AskedFor& other) { return other.due > look.due; };
  looks_.insert(std::find_if(looks_.begin(), looks_.end(), later), std::move(look));
}

void SimTier::StartHead() {
  while (!head_done_ && !queue_.empty() && queue_.front().hung) {
    hung_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  if (head_done_ || queue_.empty() || queue_.front().stalled) return;
  const Read& head = queue_.front();
  const TimePoint ready = head.issued + Seconds(options_.latency_s);
  const double start_s = (std::max(ready, link_free_) - trace_start_).count();
  head_done_ = trace_start_ + Seconds(options_.speed.EndOf(start_s, head.seconds));
}

void SimTier::ReleaseHung() {
  for (Read& read : hung_) {
    if (Happens(rng_, 0.5)) read.status = Fail(ErrorCode::kIo, "simulated end of a hung read");
    ended_.push_back(std::move(read));
  }
  hung_.clear();
  for (AskedFor& look : looks_) look.due = std::min(look.due, clock_.Now());
}

std::vector<bool> SimTier::Residency(std::span<const ChunkKey> keys) {
  std::vector<bool> held;
  for (const ChunkKey& key : keys) held.push_back(options_.look_s == 0 && held_.contains(key));
  return held;
}

bool SimTier::Look(LookRequest request) {
  if (options_.look_s == 0) return false;
  const bool ends = std::isfinite(options_.look_s);
  const TimePoint due = ends ? clock_.Now() + Seconds(options_.look_s / 2) : kNever;
  const auto later = [&](const AskedFor& other) { return other.due > due; };
  looks_.insert(std::find_if(looks_.begin(), looks_.end(), later), {due, std::move(request), 0});
  return true;
}

ReadId SimTier::Get(ReadRequest request) {
  std::memset(request.landing.data(), 0, sizeof(ChunkKey));  // whatever lay there is no chunk
  Read read{.id = next_id_++,
            .request = std::move(request),
            .issued = clock_.Now(),
            .seconds = options_.chunk_s * Vary(rng_, options_.jitter),
            .status = {},
            .stalled = Happens(rng_, options_.stall_share),
            .hung = Happens(rng_, options_.hang_share)};
  ++gets_;
  if (Happens(rng_, options_.fail_share)) {
    read.status = Fail(ErrorCode::kCorrupt, "simulated corruption");
  } else if (Happens(rng_, options_.missing_share)) {
    read.status = Fail(ErrorCode::kNotFound, "simulated miss");
    read.seconds = 0;
  }
  link_free_ = queue_.empty() ? std::max(link_free_, clock_.Now()) : link_free_;
  queue_.push_back(std::move(read));
  StartHead();
  return next_id_ - 1;
}

void SimTier::Cancel(ReadId id) {
  const auto it =
      std::find_if(queue_.begin(), queue_.end(), [&](const Read& read) { return read.id == id; });
  if (it == queue_.end() || it->hung) return;
  if (!it->stalled && Happens(rng_, options_.cancel_ignored_share)) return;
  it->status = Fail(ErrorCode::kCancelled, "cancelled");
  if (!it->stalled && Happens(rng_, options_.cancel_slow_share)) return;
  const bool head = it == queue_.begin();
  ended_.push_back(std::move(*it));
  queue_.erase(it);
  if (head) {
    link_free_ = clock_.Now();
    head_done_.reset();
    StartHead();
  }
}

Status SimTier::Put(const ChunkWrite& chunk) {
  Hold(chunk.key);
  return {};
}

Status SimTier::Evict(const ChunkKey& key) {
  held_.erase(key);
  return {};
}

TierStats SimTier::Stats() const {
  TierStats stats = stats_;
  stats.chunks = held_.size();
  return stats;
}

}  // namespace kvcake
