// A tier that only takes the time that it is told to, on a fake clock. Deterministic.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "sim/speed_trace.h"
#include "store/pins.h"
#include "store/tier.h"

namespace kvcake {

inline constexpr TimePoint kNever = TimePoint::max();

struct SimTierOptions {
  std::string name = "disk";
  double chunk_s = 0.01;     // the link's time for one chunk
  double latency_s = 0;      // before it, hidden by other reads in flight
  double jitter = 0;         // each chunk's time varies by up to this share
  double fail_share = 0;     // of reads: end with kCorrupt after their time
  double missing_share = 0;  // of reads: end with kNotFound at once
  double stall_share = 0;    // of reads: never end until cancelled
  double hang_share = 0;     // of reads: never end, cancelled or not, until ReleaseHung
  // Shares of cancelled reads; the others end at once.
  double cancel_slow_share = 0;     // end as cancelled, but in their own time
  double cancel_ignored_share = 0;  // go on as if nothing had been said
  // What it holds is told only when asked, in two parts, the last of them after this long;
  // infinity: never, until ReleaseHung.
  double look_s = 0;
  int reads_max = 32;
  SpeedTrace speed = {};  // of the link, from the beginning of each Run
};

// One link that serves reads in order. Delivers a chunk by writing its key into the landing, and
// leaves garbage there when it fails. Calls back only from Advance.
class SimTier : public Tier {
 public:
  SimTier(SimTierOptions options, FakeClock& clock, uint64_t seed);

  void Hold(const ChunkKey& key) { held_.insert(key); }
  SimTierOptions& options() { return options_; }  // what applies to reads from now on
  // Hung reads and looks end at the next Advance: some reads fail, some deliver after all.
  void ReleaseHung();
  uint64_t gets() const { return gets_; }
  // When something happens next; TimePoint::max() if nothing will.
  TimePoint NextEvent() const;
  // Calls back all that is due by the clock's now.
  void Advance();
  // `speed` is counted from now.
  void StartTrace() { trace_start_ = clock_.Now(); }

  std::string_view name() const override { return options_.name; }
  int max_reads_in_flight() const override { return options_.reads_max; }
  uint64_t max_read_bytes_in_flight() const override {
    return std::numeric_limits<uint64_t>::max();
  }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override;
  bool Look(LookRequest request) override;
  void Pin(std::span<const ChunkKey> keys) override { pins_.Add(keys); }
  void Unpin(std::span<const ChunkKey> keys) override { pins_.Remove(keys); }
  size_t pinned() const { return pins_.size(); }
  ReadId Get(ReadRequest request) override;
  void Cancel(ReadId id) override;
  Status Put(const ChunkWrite& chunk) override;
  Status Evict(const ChunkKey& key) override;
  TierStats Stats() const override;

 private:
  struct Read {
    ReadId id;
    ReadRequest request;
    TimePoint issued;
    double seconds;
    Status status;
    bool stalled;
    bool hung;
  };
  struct AskedFor {
    TimePoint due;
    LookRequest request;
    size_t answered = 0;
  };
  void StartHead();
  void Deliver(Read read);
  void Answer(AskedFor look);

  SimTierOptions options_;
  FakeClock& clock_;
  std::mt19937_64 rng_;
  std::unordered_set<ChunkKey> held_;
  std::deque<Read> queue_;
  std::deque<Read> ended_;      // due at once
  std::deque<Read> hung_;       // passed by the link
  std::deque<AskedFor> looks_;  // by when they are due
  Pins pins_;
  std::optional<TimePoint> head_done_;  // of queue_'s first
  TimePoint link_free_{};
  TimePoint trace_start_{};
  ReadId next_id_ = 1;
  uint64_t gets_ = 0;
  TierStats stats_;
};

}  // namespace kvcake
