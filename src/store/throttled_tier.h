// A decorator that lets reads pass a link of limited rate, as a slow disk or a network would.
//
// The link is first in, first out. A read reaches it `latency` after Get (latencies overlap), holds
// it for bytes / rate, and its `done` is called when the last byte would have arrived; the inner
// read starts at once, so that the link never waits for a tier that is faster than itself. Times
// are kept on an absolute schedule: late wake-ups never add up. A read that is cancelled or fails
// is charged what had passed the link by then, a miss nothing. Writes are not throttled. Rate and
// latency may follow a trace.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "store/link_trace.h"
#include "store/tier_decorator.h"

namespace kvcake {

struct ThrottledTierOptions {
  double rate_bytes_per_s = 0;  // must be positive
  Seconds latency{0};
  // What an idle link may let through at once when a read comes; at most one slab, by convention.
  uint64_t burst_bytes = 0;
  // Counted from the first read; the rate and latency above hold until its first point.
  LinkTrace trace = {};
};

struct LinkStats {
  double charged_bytes = 0;    // passed the link, those of cancelled reads included
  uint64_t reads_waiting = 0;  // on or before the link
};

class ThrottledTier : public TierDecorator {
 public:
  ThrottledTier(std::unique_ptr<Tier> inner, ThrottledTierOptions options);
  // Cancels the reads that are left, then waits for their `done`.
  ~ThrottledTier() override;

  ReadId Get(ReadRequest request) override;
  void Cancel(ReadId id) override;

  // From now on (until the trace says otherwise); what has passed the link stays as it was.
  void SetRate(double rate_bytes_per_s);
  double rate() const;
  // For reads from now on.
  void SetLatency(Seconds latency);
  LinkStats Link() const;

 private:
  struct Read {
    ReadRequest request;
    TimePoint reaches;                 // the link, by the latency when it was asked for
    bool on_link = true;               // or waiting for it
    bool cancelled = false;            // waits for the inner tier to let go of the landing
    std::optional<ReadResult> result;  // of the inner tier
    TimePoint result_at;
  };
  using Finished = std::pair<std::function<void(ReadResult)>, ReadResult>;

  static double BytesOf(const Read& read);
  void Loop() EXCLUDES(mutex_);
  void OnInnerDone(ReadId id, ReadResult result) EXCLUDES(mutex_);
  void StartHeadLocked() REQUIRES(mutex_);
  TimePoint HeadEndLocked() const REQUIRES(mutex_);
  void SetRateLocked(double rate_bytes_per_s, TimePoint now) REQUIRES(mutex_);
  std::optional<TimePoint> NextPointLocked() const REQUIRES(mutex_);
  std::optional<TimePoint> AdvanceLocked(TimePoint now) REQUIRES(mutex_);
  std::optional<TimePoint> DrainLocked(TimePoint now) REQUIRES(mutex_);
  void TakeOffLinkLocked(ReadId id, TimePoint now, double charge_max) REQUIRES(mutex_);
  void FinishLocked(ReadId id) REQUIRES(mutex_);

  // Constant after construction.
  const ThrottledTierOptions options_;

  mutable Mutex mutex_;
  CondVar wake_;
  double rate_ GUARDED_BY(mutex_);
  Seconds latency_ GUARDED_BY(mutex_);
  std::optional<TimePoint> trace_start_ GUARDED_BY(mutex_);
  size_t trace_next_ GUARDED_BY(mutex_) = 0;  // the point of the trace that comes next
  std::unordered_map<ReadId, Read> reads_ GUARDED_BY(mutex_);
  std::deque<ReadId> link_ GUARDED_BY(mutex_);  // in the order of Get; the head is on the link
  bool head_started_ GUARDED_BY(mutex_) = false;
  TimePoint head_since_ GUARDED_BY(mutex_);    // the rate has been the same since then
  double head_passed_ GUARDED_BY(mutex_) = 0;  // bytes that had passed at head_since_
  // When the last read left the link.
  TimePoint link_free_ GUARDED_BY(mutex_) = TimePoint::min();
  double charged_bytes_ GUARDED_BY(mutex_) = 0;
  std::vector<Finished> finished_ GUARDED_BY(mutex_);  // `done` to be called
  ReadId next_id_ GUARDED_BY(mutex_) = 1;
  bool stop_ GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace kvcake
