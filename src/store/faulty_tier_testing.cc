#include "store/faulty_tier_testing.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvcake {

FaultyTier::FaultyTier(std::unique_ptr<Tier> inner, FaultyTierOptions options)
    : TierDecorator(std::move(inner)), options_(options), random_(options.seed) {}

FaultyTier::~FaultyTier() {
  FinishStalled({ErrorCode::kCancelled, "read cancelled"});
  MutexLock lock(mutex_);
  for (auto& [id, read] : reads_) read.cancelled = true;
  while (!reads_.empty()) idle_.Wait(mutex_);
}

FaultyTier::Fault FaultyTier::DrawFaultLocked() {
  double dice = std::uniform_real_distribution<double>(0, 1)(random_);
  const double delay_dice = std::uniform_real_distribution<double>(0, 1)(random_);
  const std::pair<double, Fault> faults[] = {
      {options_.read_error, Fault::kError},     {options_.read_corrupt, Fault::kCorrupt},
      {options_.read_flip, Fault::kFlip},       {options_.read_short, Fault::kShort},
      {options_.read_missing, Fault::kMissing}, {options_.read_stall, Fault::kStall}};
  for (auto [probability, fault] : faults) {
    if (dice < probability) return fault;
    dice -= probability;
  }
  return delay_dice < options_.read_delay ? Fault::kDelay : Fault::kNone;
}

ReadId FaultyTier::Get(ReadRequest request) {
  ReadRequest forwarded = request;
  ReadId id;
  Fault fault;
  {
    MutexLock lock(mutex_);
    id = next_id_++;
    fault = DrawFaultLocked();
    if (fault != Fault::kNone) ++faults_;
    reads_.emplace(id, Read{.request = std::move(request), .fault = fault});
  }
  if (fault == Fault::kStall) return id;
  if (fault == Fault::kMissing) {
    FinishSoon(id, ReadResult{Fail(ErrorCode::kNotFound, "injected: chunk missing")}, {});
    return id;
  }
  forwarded.done = [this, id](ReadResult result) { OnInnerDone(id, std::move(result)); };
  ForwardGet(id, std::move(forwarded));
  return id;
}

void FaultyTier::OnInnerDone(ReadId id, ReadResult result) {
  TimePoint when{};
  Fault fault;
  ChunkKey key;
  {
    MutexLock lock(mutex_);
    Read& read = reads_.at(id);
    fault = read.fault;
    key = read.request.key;
    if (fault == Fault::kDelay) {
      const Seconds range = options_.delay_max - options_.delay_min;
      when = Clock::Real().Now() + options_.delay_min +
             range * std::uniform_real_distribution<double>(0, 1)(random_);
    } else if (fault != Fault::kNone) {
      if (result.status) ++reads_failed_;
      SpoilLandingLocked(fault, read.request.landing);
    }
  }
  if (result.status && fault == Fault::kError) {
    result = ReadResult{Fail(ErrorCode::kIo, "injected: I/O error")};
  } else if (result.status && fault != Fault::kNone && fault != Fault::kDelay) {
    result = ReadResult{Fail(ErrorCode::kCorrupt, "injected: corrupt chunk")};
    (void)inner().Evict(key);
  }
  FinishSoon(id, std::move(result), when);
}

void FaultyTier::SpoilLandingLocked(Fault fault, std::span<std::byte> landing) {
  if (options_.copier == nullptr) return SpoilLocked(fault, landing);
  std::vector<std::byte> bytes(landing.size());
  CopyFromPage(*options_.copier, bytes, landing);
  SpoilLocked(fault, bytes);
  AwaitCopies(1, [&](int64_t, std::function<void()> done) {
    options_.copier->ToPage(landing, bytes, std::move(done));
  });
}

// Densely, so that it never meets padding only; one bit is in the landing's first payload.
void FaultyTier::SpoilLocked(Fault fault, std::span<std::byte> bytes) {
  if (fault == Fault::kFlip) {
    const size_t header = bytes.size() > kPageHeaderBytes ? kPageHeaderBytes : 0;
    bytes[header + random_() % 64] ^= std::byte{1} << (random_() % 8);
    return;
  }
  const size_t begin = random_() % (fault == Fault::kShort ? bytes.size() / 2 : 64);
  for (size_t at = begin; at < bytes.size();) {
    const size_t next = std::min<size_t>(at + 1 + random_() % 4096, bytes.size());
    for (; at < next; at += 64) bytes[at] ^= std::byte{0x40};
    at = next;
  }
}

void FaultyTier::FinishSoon(ReadId id, ReadResult result, TimePoint when) {
  callbacks_.At(when, [this, id, result = std::move(result)]() mutable {
    std::function<void(ReadResult)> done;
    {
      MutexLock lock(mutex_);
      done = std::move(reads_.at(id).request.done);
    }
    done(std::move(result));
    done = nullptr;
    MutexLock lock(mutex_);
    reads_.erase(id);
    if (reads_.empty()) idle_.NotifyAll();
  });
}

void FaultyTier::Cancel(ReadId id) {
  bool stalled = false;
  {
    MutexLock lock(mutex_);
    auto it = reads_.find(id);
    if (it == reads_.end() || it->second.cancelled) return;
    it->second.cancelled = true;
    stalled = it->second.fault == Fault::kStall;
  }
  if (stalled) FinishSoon(id, ReadResult{Fail(ErrorCode::kCancelled, "read cancelled")}, {});
  ForwardCancel(id);
}

void FaultyTier::FinishStalled(const Error& error) {
  std::vector<ReadId> stalled;
  {
    MutexLock lock(mutex_);
    for (auto& [id, read] : reads_) {
      if (read.fault != Fault::kStall || read.cancelled) continue;
      read.cancelled = true;  // so that nobody finishes it a second time
      stalled.push_back(id);
    }
  }
  std::sort(stalled.begin(), stalled.end());
  for (ReadId id : stalled) FinishSoon(id, ReadResult{tl::unexpected(error)}, {});
}

void FaultyTier::ReleaseStalled() {
  FinishStalled({ErrorCode::kIo, "injected: read stalled, then failed"});
}

Status FaultyTier::Put(const ChunkWrite& chunk) {
  {
    MutexLock lock(mutex_);
    const double dice = std::uniform_real_distribution<double>(0, 1)(random_);
    if (dice < options_.write_error) {
      ++faults_;
      ++writes_failed_;
      return Fail(ErrorCode::kIo, "injected: write error");
    }
    if (dice < options_.write_error + options_.write_lost) {
      ++faults_;
      return {};
    }
  }
  return inner().Put(chunk);
}

TierStats FaultyTier::Stats() const {
  TierStats stats = inner().Stats();
  MutexLock lock(mutex_);
  stats.reads -= std::min(stats.reads, reads_failed_);  // delivered by the inner tier only
  stats.reads_failed += reads_failed_;
  stats.writes_failed += writes_failed_;
  return stats;
}

uint64_t FaultyTier::faults() const {
  MutexLock lock(mutex_);
  return faults_;
}

}  // namespace kvcake
