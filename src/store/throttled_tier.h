// A decorator that lets reads pass a link of limited rate, as a slow disk or a network would.
//
// The link is first in, first out. A read reaches it `latency` after Get (latencies overlap), holds
// it for bytes / rate, and its `done` is called when the last byte would have arrived; the inner
// read starts at once, so that the link never waits for a tier that is faster than itself. Times
// are kept on an absolute schedule: late wake-ups never add up. A read that is cancelled or fails
// is charged what had passed the link by then, a miss nothing. Writes are not throttled.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "store/tier.h"

namespace kvcake {

struct ThrottledTierOptions {
  double rate_bytes_per_s = 0;  // must be positive
  Seconds latency{0};
  // What an idle link may let through at once when a read comes; at most one slab, by convention.
  uint64_t burst_bytes = 0;
};

struct LinkStats {
  double charged_bytes = 0;    // passed the link, those of cancelled reads included
  uint64_t reads_waiting = 0;  // on or before the link
};

class ThrottledTier : public Tier {
 public:
  ThrottledTier(std::unique_ptr<Tier> inner, ThrottledTierOptions options);
  // Cancels the reads that are left, then waits for their `done`.
  ~ThrottledTier() override;

  std::string_view name() const override { return inner_->name(); }
  int max_reads_in_flight() const override { return inner_->max_reads_in_flight(); }
  uint64_t max_read_bytes_in_flight() const override { return inner_->max_read_bytes_in_flight(); }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override;
  ReadId Get(ReadRequest request) override;
  void Cancel(ReadId id) override;
  Status Put(const ChunkWrite& chunk) override;
  Status Evict(const ChunkKey& key) override;
  TierStats Stats() const override;  // the inner tier's

  // From now on; what has passed the link stays as it was.
  void SetRate(double rate_bytes_per_s);
  double rate() const;
  LinkStats Link() const;
  Tier& inner() { return *inner_; }

 private:
  struct Read {
    ReadRequest request;
    TimePoint asked;
    ReadId inner_id = 0;               // 0 until known
    bool on_link = true;               // or waiting for it
    bool cancelled = false;            // waits for the inner tier to let go of the landing
    std::optional<ReadResult> result;  // of the inner tier
    TimePoint result_at;
  };
  using Finished = std::pair<std::function<void(ReadResult)>, ReadResult>;

  void Loop();
  void OnInnerDone(ReadId id, ReadResult result);
  void StartHeadLocked();
  TimePoint HeadEndLocked() const;
  std::optional<TimePoint> AdvanceLocked(TimePoint now);
  void TakeOffLinkLocked(ReadId id, TimePoint now, double charge_max);
  void FinishLocked(ReadId id);

  // Constant after construction.
  const ThrottledTierOptions options_;
  const std::unique_ptr<Tier> inner_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  double rate_;
  std::unordered_map<ReadId, Read> reads_;
  std::deque<ReadId> link_;  // in the order of Get; the head is on the link
  bool head_started_ = false;
  TimePoint head_since_;                    // the rate has been the same since then
  double head_passed_ = 0;                  // bytes that had passed at head_since_
  TimePoint link_free_ = TimePoint::min();  // when the last read left the link
  double charged_bytes_ = 0;
  std::vector<Finished> finished_;  // `done` to be called
  ReadId next_id_ = 1;
  bool stop_ = false;

  std::thread thread_;
};

}  // namespace kvcake
