// Tiers that answer when a test has them do so.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "cake/fake_engine_testing.h"
#include "store/tier.h"

namespace kvcake::testing_util {

// Holds its reads until told to deliver them.
class HeldTier : public Tier {
 public:
  std::string_view name() const override { return "held"; }
  int max_reads_in_flight() const override { return reads_max; }
  uint64_t max_read_bytes_in_flight() const override { return 4 * kLayout.page_bytes(); }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override {
    return std::vector<bool>(keys.size(), true);
  }
  ReadId Get(ReadRequest request) override {
    reads.push_back(std::move(request));
    return ++gets;
  }
  void Cancel(ReadId) override {}
  Status Put(const ChunkWrite&) override { return {}; }
  Status Evict(const ChunkKey&) override { return {}; }
  TierStats Stats() const override { return {}; }

  void DeliverAll() {
    while (!reads.empty()) {
      ReadRequest read = std::move(reads.front());
      reads.pop_front();
      std::memcpy(read.landing.data(), &read.key, sizeof(ChunkKey));
      read.done({.status = {}, .bytes = read.landing.size(), .numeric_path = path});
    }
  }

  int reads_max = 4;
  std::deque<ReadRequest> reads;
  ReadId gets = 0;
  NumericPath path = NumericPath::kUnknown;
};

// Knows nothing before it is asked, and says nothing until told to.
class HungTier : public HeldTier {
 public:
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override {
    return std::vector<bool>(keys.size(), knows);
  }
  bool Look(LookRequest request) override {
    looks.push_back(std::move(request));
    return true;
  }
  void Pin(std::span<const ChunkKey> keys) override {
    if (on_pin) on_pin(keys);
    pinned += keys.size();
  }
  void Unpin(std::span<const ChunkKey> keys) override {
    EXPECT_LE(keys.size(), pinned) << "an Unpin comes after its Pin";
    pinned -= keys.size();
  }

  // The next `count` keys of the first look are held; whether more is wanted.
  bool Tell(size_t first, size_t count) {
    return looks.front().found(first, std::vector<bool>(count, true));
  }

  bool knows = false;  // all there is, from now on
  std::deque<LookRequest> looks;
  std::function<void(std::span<const ChunkKey>)> on_pin;  // called before a Pin counts
  std::atomic<size_t> pinned = 0;
};

}  // namespace kvcake::testing_util
