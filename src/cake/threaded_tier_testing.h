// A tier that races with whoever asks it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cake/fake_engine_testing.h"
#include "store/tier.h"

namespace kvcake::testing_util {

// Answers on two threads, in any order, after random times; some reads fail.
class ThreadedTier : public Tier {
 public:
  ThreadedTier(int delay_us_max, int fail_percent, uint32_t seed)
      : delay_us_max_(delay_us_max), fail_percent_(fail_percent), rng_(seed) {
    for (auto& thread : threads_) thread = std::thread([this] { Serve(); });
  }
  ~ThreadedTier() override {
    {
      MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.NotifyAll();
    for (auto& thread : threads_) thread.join();
  }

  std::string_view name() const override { return "threaded"; }
  int max_reads_in_flight() const override { return 6; }
  uint64_t max_read_bytes_in_flight() const override { return 5 * kLayout.page_bytes(); }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override {
    return std::vector<bool>(keys.size(), true);
  }
  ReadId Get(ReadRequest request) override {
    MutexLock lock(mutex_);
    EXPECT_LT(in_flight_, 5) << "the smaller of both limits";
    ++in_flight_;
    queue_.push_back({next_id_, std::move(request), false});
    changed_.NotifyOne();
    return next_id_++;
  }
  void Cancel(ReadId id) override {
    MutexLock lock(mutex_);
    for (Read& read : queue_) {
      if (read.id == id) read.cancelled = true;
    }
  }
  Status Put(const ChunkWrite&) override { return {}; }
  Status Evict(const ChunkKey&) override { return {}; }
  TierStats Stats() const override { return {}; }

 private:
  struct Read {
    ReadId id;
    ReadRequest request;
    bool cancelled;
  };
  void Serve() {
    MutexLock lock(mutex_);
    while (true) {
      while (!stop_ && queue_.empty()) changed_.Wait(mutex_);
      if (queue_.empty()) return;
      Read read = std::move(queue_.front());
      queue_.pop_front();
      const auto delay = std::chrono::microseconds(rng_() % (delay_us_max_ + 1));
      const bool fail = static_cast<int>(rng_() % 100) < fail_percent_;
      lock.Unlock();
      std::this_thread::sleep_for(delay);
      ReadResult result;
      // Whoever is not the page's owner any more would see this.
      std::memset(read.request.landing.data(), 0xdb, sizeof(ChunkKey));
      if (read.cancelled) {
        result.status = Fail(ErrorCode::kCancelled, "cancelled");
      } else if (fail) {
        result.status = Fail(ErrorCode::kCorrupt, "bad checksum");
      } else {
        std::memcpy(read.request.landing.data(), &read.request.key, sizeof(ChunkKey));
        result.bytes = read.request.landing.size();
      }
      lock.Lock();
      --in_flight_;
      lock.Unlock();
      read.request.done(std::move(result));
      lock.Lock();
    }
  }

  const int delay_us_max_, fail_percent_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Read> queue_ GUARDED_BY(mutex_);
  std::mt19937 rng_ GUARDED_BY(mutex_);
  ReadId next_id_ GUARDED_BY(mutex_) = 1;
  int in_flight_ GUARDED_BY(mutex_) = 0;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread threads_[2];
};

}  // namespace kvcake::testing_util
