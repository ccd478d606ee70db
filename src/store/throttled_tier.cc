#include "store/throttled_tier.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/cpu.h"

namespace kvcake {

ThrottledTier::ThrottledTier(std::unique_ptr<Tier> inner, ThrottledTierOptions options)
    : TierDecorator(std::move(inner)),
      options_(std::move(options)),
      rate_(options_.rate_bytes_per_s),
      latency_(options_.latency) {
  CHECK(rate_ > 0 && latency_.count() >= 0);
  thread_ = std::thread([this] { Loop(); });
}

ThrottledTier::~ThrottledTier() {
  std::vector<ReadId> ids;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, read] : reads_) ids.push_back(id);
  }
  for (ReadId id : ids) Cancel(id);
  {
    MutexLock lock(mutex_);
    stop_ = true;
    wake_.NotifyOne();
  }
  thread_.join();
}

// What passes the link: of a landing that has more room than the read needed, only the tier below
// knows how much.
double ThrottledTier::BytesOf(const Read& read) {
  const bool known = read.result && read.result->status;
  return static_cast<double>(known ? read.result->bytes : read.request.landing.size());
}

ReadId ThrottledTier::Get(ReadRequest request) {
  ReadRequest forwarded = request;
  ReadId id;
  {
    MutexLock lock(mutex_);
    const TimePoint now = Clock::Real().Now();
    if (!trace_start_) trace_start_ = now;
    AdvanceLocked(now);  // the latency is that of this moment
    id = next_id_++;
    Read read;
    read.request = std::move(request);
    read.reaches = now + latency_;
    reads_.emplace(id, std::move(read));
    link_.push_back(id);
    wake_.NotifyOne();
  }
  forwarded.done = [this, id](ReadResult result) { OnInnerDone(id, std::move(result)); };
  ForwardGet(id, std::move(forwarded));
  return id;
}

void ThrottledTier::OnInnerDone(ReadId id, ReadResult result) {
  MutexLock lock(mutex_);
  Read& read = reads_.at(id);
  read.result = std::move(result);
  read.result_at = Clock::Real().Now();
  if (!read.on_link) {
    FinishLocked(id);
  } else if (!read.result->status) {
    AdvanceLocked(read.result_at);
    if (read.on_link) {
      // A chunk that is not there does not pass.
      const bool missing = read.result->status.error().code == ErrorCode::kNotFound;
      const double charge_max = missing ? 0 : BytesOf(read);
      TakeOffLinkLocked(id, read.result_at, charge_max);
      FinishLocked(id);
    }
  }
  wake_.NotifyOne();
}

void ThrottledTier::Cancel(ReadId id) {
  {
    MutexLock lock(mutex_);
    const TimePoint now = Clock::Real().Now();
    AdvanceLocked(now);  // what has left the link by now is delivered, not cancelled
    auto it = reads_.find(id);
    if (it == reads_.end() || it->second.cancelled) return;
    Read& read = it->second;
    read.cancelled = true;
    TakeOffLinkLocked(id, now, BytesOf(read));
    if (read.result) FinishLocked(id);
    wake_.NotifyOne();
  }
  ForwardCancel(id);
}

void ThrottledTier::SetRate(double rate_bytes_per_s) {
  CHECK(rate_bytes_per_s > 0);
  MutexLock lock(mutex_);
  const TimePoint now = Clock::Real().Now();
  AdvanceLocked(now);
  SetRateLocked(rate_bytes_per_s, now);
  wake_.NotifyOne();
}

void ThrottledTier::SetRateLocked(double rate_bytes_per_s, TimePoint now) {
  if (head_started_ && now > head_since_) {
    head_passed_ += (now - head_since_).count() * rate_;
    head_since_ = now;
  }
  rate_ = rate_bytes_per_s;
}

void ThrottledTier::SetLatency(Seconds latency) {
  MutexLock lock(mutex_);
  latency_ = latency;
}

double ThrottledTier::rate() const {
  MutexLock lock(mutex_);
  return rate_;
}

LinkStats ThrottledTier::Link() const {
  MutexLock lock(mutex_);
  return {charged_bytes_, link_.size()};
}

// The head takes the link as soon as both are ready for each other.
void ThrottledTier::StartHeadLocked() {
  const Read& head = reads_.at(link_.front());
  const Seconds burst(static_cast<double>(options_.burst_bytes) / rate_);
  head_started_ = true;
  head_since_ = std::max(link_free_, head.reaches - burst);
  head_passed_ = 0;
}

TimePoint ThrottledTier::HeadEndLocked() const {
  const Read& head = reads_.at(link_.front());
  const TimePoint passed =
      head_since_ + Seconds(std::max(0.0, BytesOf(head) - head_passed_) / rate_);
  // A burst shortens the transfer, not the latency.
  return std::max(passed, head.reaches);
}

// Takes a read that will not pass whole off the link; it is charged what has passed.
void ThrottledTier::TakeOffLinkLocked(ReadId id, TimePoint now, double charge_max) {
  auto it = std::find(link_.begin(), link_.end(), id);
  if (it == link_.end()) return;
  if (it == link_.begin() && head_started_) {
    const double since = std::max(0.0, (now - head_since_).count());
    const double charged = std::min(charge_max, head_passed_ + since * rate_);
    charged_bytes_ += charged;
    head_started_ = false;
    // The link is free from when the charged bytes had passed: now, or earlier for a read that
    // turned out to have fewer.
    if (charged > 0) {
      link_free_ = head_since_ + Seconds(std::max(0.0, charged - head_passed_) / rate_);
    }
  }
  link_.erase(it);
  reads_.at(id).on_link = false;
}

// Off the link, and the inner tier has let go: hands the read over to the thread.
void ThrottledTier::FinishLocked(ReadId id) {
  auto node = reads_.extract(id);
  Read& read = node.mapped();
  if (read.cancelled) read.result = ReadResult{Fail(ErrorCode::kCancelled, "read cancelled")};
  finished_.emplace_back(std::move(read.request.done), std::move(*read.result));
}

std::optional<TimePoint> ThrottledTier::NextPointLocked() const {
  if (!trace_start_ || trace_next_ == options_.trace.size()) return std::nullopt;
  return *trace_start_ + options_.trace[trace_next_].at;
}

// Moves every read as far as it can be by `now`, through the changes of the trace until then;
// returns when to look again, if time alone will change anything.
std::optional<TimePoint> ThrottledTier::AdvanceLocked(TimePoint now) {
  auto point = NextPointLocked();
  for (; point && *point <= now; point = NextPointLocked()) {
    DrainLocked(*point);
    const LinkPoint& link = options_.trace[trace_next_++];
    SetRateLocked(link.rate_bytes_per_s, *point);
    latency_ = link.latency;
  }
  const auto next = DrainLocked(now);
  return next && point ? std::min(*next, *point) : next;
}

std::optional<TimePoint> ThrottledTier::DrainLocked(TimePoint now) {
  std::optional<TimePoint> next;
  while (!link_.empty()) {
    const ReadId id = link_.front();
    Read& read = reads_.at(id);
    if (!head_started_) StartHeadLocked();
    if (read.result && !read.result->status) break;  // about to be taken off
    const TimePoint end = HeadEndLocked();
    if (end > now) {
      next = end;
      break;
    }
    if (!read.result) break;  // the inner tier is slower than the link: its answer wakes us
    // On the absolute schedule, however late we woke; the link has waited for a late inner tier.
    link_free_ = std::max(end, read.result_at);
    charged_bytes_ += BytesOf(read);
    head_started_ = false;
    link_.pop_front();
    FinishLocked(id);
  }
  return next;
}

void ThrottledTier::Loop() {
  RunPromptly();
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default lets a sleep last 50 us longer
  MutexLock lock(mutex_);
  while (true) {
    const auto next = AdvanceLocked(Clock::Real().Now());
    if (!finished_.empty()) {
      auto finished = std::exchange(finished_, {});
      lock.Unlock();
      for (auto& [done, result] : finished) done(std::move(result));
      finished.clear();  // what the callbacks captured goes before the lock is taken
      lock.Lock();
      continue;
    }
    if (stop_ && reads_.empty()) return;
    if (next) {
      wake_.WaitUntil(mutex_, *next);
    } else {
      wake_.Wait(mutex_);
    }
  }
}

}  // namespace kvcake
