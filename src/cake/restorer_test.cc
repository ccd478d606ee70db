// The Restorer among real threads; the simulator's tests cover its decisions.
#include "cake/restorer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

namespace kvcake {
namespace {

constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 1, .chunk_tokens = 128};

// Answers on two threads, in any order, after random times; some reads fail.
class ThreadedTier : public Tier {
 public:
  ThreadedTier(int delay_us_max, int fail_percent, uint32_t seed)
      : delay_us_max_(delay_us_max), fail_percent_(fail_percent), rng_(seed) {
    for (auto& thread : threads_) thread = std::thread([this] { Serve(); });
  }
  ~ThreadedTier() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  std::string_view name() const override { return "threaded"; }
  int max_reads_in_flight() const override { return 6; }
  uint64_t max_read_bytes_in_flight() const override { return 5 * kLayout.page_bytes(); }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override {
    return std::vector<bool>(keys.size(), true);
  }
  ReadId Get(ReadRequest request) override {
    std::lock_guard lock(mutex_);
    EXPECT_LT(in_flight_, 5) << "the smaller of both limits";
    ++in_flight_;
    queue_.push_back({next_id_, std::move(request), false});
    changed_.notify_one();
    return next_id_++;
  }
  void Cancel(ReadId id) override {
    std::lock_guard lock(mutex_);
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
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Read read = std::move(queue_.front());
      queue_.pop_front();
      const auto delay = std::chrono::microseconds(rng_() % (delay_us_max_ + 1));
      const bool fail = static_cast<int>(rng_() % 100) < fail_percent_;
      lock.unlock();
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
      lock.lock();
      --in_flight_;
      lock.unlock();
      read.request.done(std::move(result));
      lock.lock();
    }
  }

  const int delay_us_max_, fail_percent_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Read> queue_;
  std::mt19937 rng_;
  ReadId next_id_ = 1;
  int in_flight_ = 0;
  bool stop_ = false;
  std::thread threads_[2];
};

RestoreRequest Request(int document, int chunks, Policy policy) {
  const std::vector<int32_t> tokens(chunks, document);
  RestoreRequest request;
  request.keys = ChunkKeys(ChunkKey{}, tokens, 1);
  request.prompt_tokens = chunks * 128 + 5;
  request.policy = policy;
  return request;
}

// What an engine does with one turn; false when the restoration is done.
bool Step(PagePool& pool, const RestoreRequest& request, Restoration& restoration,
          std::mt19937& rng, TimePoint& wake) {
  const ComputeTurn turn = restoration.NextTurn({.chunks = 4});
  if (turn.kind == ComputeTurn::Kind::kDone) return false;
  if (turn.kind == ComputeTurn::Kind::kWait) {
    wake = std::min(wake, turn.wait_until);
    return true;
  }
  const auto pages = restoration.PageIds(turn.claim.end());
  for (int i = 0; i < turn.claim.first; ++i) {
    EXPECT_EQ(std::memcmp(pool.Data(pages[i]), &request.keys[i], sizeof(ChunkKey)), 0);
  }
  for (int i = turn.claim.first; i < turn.claim.end(); ++i) {
    std::memcpy(pool.Data(pages[i]), &request.keys[i], sizeof(ChunkKey));
  }
  std::this_thread::sleep_for(std::chrono::microseconds(rng() % 300));
  restoration.Computed(turn.claim, Seconds(1e-6 * (50 + rng() % 300)));
  wake = TimePoint{};
  return true;
}

struct Race {
  int delay_us_max, fail_percent, documents;
};

class RestorerRaceTest : public testing::TestWithParam<Race> {};

TEST_P(RestorerRaceTest, TenRestorationsEndWithTheRightPages) {
  const Race race = GetParam();
  for (int seed = 0; seed < 15; ++seed) {
    std::mt19937 rng(seed);
    auto pool = std::move(PagePool::Create(kLayout, 600 * kLayout.page_bytes()).value());
    ComputeCost cost;
    {
      ThreadedTier tier(race.delay_us_max, race.fail_percent, seed);
      Restorer restorer(*pool, {&tier}, cost, Clock::Real());
      std::vector<RestoreRequest> requests;
      std::vector<std::shared_ptr<Restoration>> open;
      for (int i = 0; i < 10; ++i) {
        const auto policy = i < 7 ? Policy::kCake : static_cast<Policy>(i % 3);
        requests.push_back(Request(i % race.documents, 30 + i, policy));
        open.push_back(restorer.Open(requests.back()));
      }
      int left = 10;
      while (left > 0) {
        TimePoint wake = TimePoint::max();
        for (size_t i = 0; i < open.size(); ++i) {
          if (!open[i]) continue;
          if (rng() % 200 == 0) {  // cancelled, with reads in flight
            open[i].reset();
            --left;
            continue;
          }
          restorer.CheckInvariants();
          if (Step(*pool, requests[i], *open[i], rng, wake)) continue;
          const RestoreReport report = open[i]->Report();
          int sum = report.tokens_computed + report.tokens_reused;
          for (const auto& [name, tokens] : report.tokens_loaded) sum += tokens;
          EXPECT_EQ(sum, requests[i].prompt_tokens);
          const PageTable pages = open[i]->TakePages();
          for (size_t c = 0; c < pages.size(); ++c) {
            EXPECT_EQ(
                std::memcmp(pool->Data(pages[c].id()), &requests[i].keys[c], sizeof(ChunkKey)), 0);
          }
          open[i].reset();
          --left;
        }
        if (left > 0) restorer.WaitForEvent(wake);
      }
    }
    EXPECT_EQ(pool->Stats().referenced, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Rates, RestorerRaceTest,
                         testing::Values(Race{0, 0, 1}, Race{50, 0, 1}, Race{300, 20, 1},
                                         Race{2000, 5, 2}, Race{300, 100, 3}));

TEST(RestorerTest, WakeEndsTheNextWaitAndDeadlinesEndOthers) {
  auto pool = std::move(PagePool::Create(kLayout, 4 * kLayout.page_bytes()).value());
  ComputeCost cost;
  Restorer restorer(*pool, {}, cost, Clock::Real());
  restorer.Wake();
  restorer.WaitForEvent(TimePoint::max());
  const TimePoint deadline = Clock::Real().Now() + Seconds(0.01);
  restorer.WaitForEvent(deadline);
  EXPECT_GE(Clock::Real().Now(), deadline);
  std::thread waker([&] { restorer.Wake(); });
  restorer.WaitForEvent(TimePoint::max());
  waker.join();
}

TEST(RestorerTest, APromptWithoutAFullChunkIsDoneAtOnce) {
  auto pool = std::move(PagePool::Create(kLayout, 4 * kLayout.page_bytes()).value());
  ComputeCost cost;
  Restorer restorer(*pool, {}, cost, Clock::Real());
  auto restoration = restorer.Open(Request(1, 0, Policy::kCake));
  EXPECT_EQ(restoration->NextTurn({.chunks = 1}).kind, ComputeTurn::Kind::kDone);
  EXPECT_EQ(restoration->Report().tokens_computed, 5);
  EXPECT_TRUE(restoration->TakePages().empty());
}

// Holds its reads until told to deliver them.
class HeldTier : public Tier {
 public:
  std::string_view name() const override { return "held"; }
  int max_reads_in_flight() const override { return 4; }
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

  std::deque<ReadRequest> reads;
  ReadId gets = 0;
  NumericPath path = NumericPath::kUnknown;
};

// Knows nothing before it is asked, and says nothing until told to.
class HungTier : public HeldTier {
 public:
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override {
    return std::vector<bool>(keys.size());
  }
  bool Look(LookRequest request) override {
    looks.push_back(std::move(request));
    return true;
  }
  void Pin(std::span<const ChunkKey> keys) override { pinned += keys.size(); }
  void Unpin(std::span<const ChunkKey> keys) override { pinned -= keys.size(); }

  // The next `count` keys of the first look are held; whether more is wanted.
  bool Tell(size_t first, size_t count) {
    return looks.front().found(first, std::vector<bool>(count, true));
  }

  std::deque<LookRequest> looks;
  size_t pinned = 0;
};

void PublishBehind(PagePool& pool, const ChunkKey& key, NumericPath path = NumericPath::kUnknown) {
  PageHandle page = std::move(*pool.Draw());
  std::memcpy(pool.Data(page.id()), &key, sizeof(ChunkKey));
  pool.Publish(std::move(page), key, path);
}

// Another sequence generates and publishes what is being read: it is resident for whoever comes
// then, while the read goes on for whoever came before.
TEST(RestorerTest, AChunkPublishedWhileItIsReadIsResidentForTheNext) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HeldTier tier;
  ComputeCost cost;
  for (int i = 0; i < 8; ++i) cost.Add(i * 128, 128, Seconds(10e-3));
  Restorer restorer(*pool, {&tier}, cost, Clock::Real());
  const RestoreRequest loads = Request(1, 8, Policy::kLoad);
  const RestoreRequest computes = Request(1, 8, Policy::kCompute);
  auto first = restorer.Open(loads);
  EXPECT_EQ(tier.reads.size(), 4u);
  for (int chunk : {0, 1, 4, 5}) PublishBehind(*pool, loads.keys[chunk]);  // 4 and 5 are being read
  auto second = restorer.Open(computes);
  restorer.CheckInvariants();
  std::mt19937 rng(1);
  for (int turns = 0; turns < 100; ++turns) {
    TimePoint wake{};
    if (!Step(*pool, computes, *second, rng, wake)) break;
    restorer.CheckInvariants();
  }
  EXPECT_TRUE(second->done());
  for (int turns = 0; turns < 100 && !first->done(); ++turns) {
    tier.DeliverAll();
    restorer.CheckInvariants();
  }
  EXPECT_TRUE(first->done());
  tier.DeliverAll();
  first.reset();
  second.reset();
  tier.DeliverAll();
}

TEST(RestorerTest, ATierThatHangsWhenAskedDelaysNoRestoration) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HungTier tier;
  ComputeCost cost;
  Restorer restorer(*pool, {&tier}, cost, Clock::Real());
  const RestoreRequest request = Request(1, 8, Policy::kCake);
  std::mt19937 rng(1);
  {
    auto restoration = restorer.Open(request);
    while (!restoration->done()) {
      TimePoint wake = TimePoint::max();
      Step(*pool, request, *restoration, rng, wake);
      if (!restoration->done()) restorer.WaitForEvent(wake);
    }
    EXPECT_EQ(restoration->Report().tokens_computed, 8 * 128 + 5);
  }
  ASSERT_EQ(tier.looks.size(), 1u);
  EXPECT_FALSE(tier.Tell(0, 3)) << "nobody wants to know any more";
  EXPECT_EQ(tier.pinned, 0u);
}

TEST(RestorerTest, WhatATierSaysLateIsPinnedAndLoaded) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HungTier tier;
  ComputeCost cost;
  for (int i = 0; i < 8; ++i) cost.Add(i * 128, 128, Seconds(10));  // loading is worth it
  Restorer restorer(*pool, {&tier}, cost, Clock::Real());
  auto restoration = restorer.Open(Request(1, 8, Policy::kCake));
  EXPECT_EQ(tier.reads.size(), 0u);
  EXPECT_TRUE(tier.Tell(0, 5));
  EXPECT_EQ(tier.pinned, 5u);
  EXPECT_EQ(tier.reads.size(), 4u) << "as many as it takes at once";
  EXPECT_FALSE(tier.Tell(5, 3)) << "that was all";
  EXPECT_EQ(tier.pinned, 8u);
  restorer.CheckInvariants();
  for (int turns = 0; turns < 100 && !restoration->done(); ++turns) tier.DeliverAll();
  EXPECT_EQ(restoration->Report().loaded(), 8 * 128);
  restoration.reset();
  EXPECT_EQ(tier.pinned, 0u);
}

TEST(RestorerTest, ChunksOfAnotherPathAreCountedWhereverTheyComeFrom) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HeldTier tier;
  tier.path = NumericPath::kBf16Dot;
  ComputeCost cost;
  Restorer restorer(*pool, {&tier}, cost, Clock::Real(), {.numeric_path = NumericPath::kF32});
  const RestoreRequest loads = Request(1, 6, Policy::kLoad);
  PublishBehind(*pool, loads.keys[0], NumericPath::kF32);
  PublishBehind(*pool, loads.keys[1], NumericPath::kUnknown);
  auto first = restorer.Open(loads);
  EXPECT_EQ(first->Report().chunks_mixed_path, 1);
  auto second = restorer.Open(loads);  // gets what the first one loads
  for (int turns = 0; turns < 100 && !first->done(); ++turns) tier.DeliverAll();
  EXPECT_EQ(first->Report().chunks_mixed_path, 1 + 4);
  EXPECT_EQ(second->Report().chunks_mixed_path, 1 + 4);

  // What is computed after them is ours to rounding only, and everybody learns it.
  RestoreRequest longer = Request(1, 8, Policy::kCompute);
  std::mt19937 rng(1);
  TimePoint wake{};
  auto third = restorer.Open(longer);
  while (Step(*pool, longer, *third, rng, wake)) {
  }
  EXPECT_EQ(third->Report().tokens_computed, 2 * 128 + 5);
  EXPECT_TRUE(third->Progress().mixed_path);
  auto fourth = restorer.Open(longer);
  EXPECT_EQ(fourth->Report().chunks_mixed_path, 1 + 4 + 2);

  // Nothing of the kind is said of a prompt that is ours.
  const RestoreRequest clean = Request(2, 4, Policy::kCompute);
  auto fifth = restorer.Open(clean);
  while (Step(*pool, clean, *fifth, rng, wake)) {
  }
  EXPECT_EQ(restorer.Open(clean)->Report().chunks_mixed_path, 0);
  EXPECT_FALSE(fifth->Progress().mixed_path);
}

// The bound is that of the work there was: not of chunks that others made meanwhile.
TEST(RestorerTest, TheBoundLeavesOutWhatOthersMade) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  ComputeCost cost;
  Restorer restorer(*pool, {}, cost, Clock::Real());
  const RestoreRequest request = Request(1, 8, Policy::kCompute);
  auto first = restorer.Open(request), second = restorer.Open(request);
  std::mt19937 rng(1);
  TimePoint wake{};
  while (Step(*pool, request, *first, rng, wake)) {
  }
  EXPECT_TRUE(second->done());
  EXPECT_GT(first->Report(Seconds(0)).bound_s, 0);
  EXPECT_EQ(second->Report(Seconds(0)).bound_s, 0);
}

TEST(RestorerTest, TierCostsSurviveJson) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  ComputeCost cost;
  ThreadedTier tier(100, 0, 1);
  Restorer restorer(*pool, {&tier}, cost, Clock::Real()), copy(*pool, {&tier}, cost, Clock::Real());
  std::mt19937 rng(1);
  const RestoreRequest request = Request(1, 40, Policy::kLoad);
  auto restoration = restorer.Open(request);
  TimePoint wake = TimePoint::max();
  while (Step(*pool, request, *restoration, rng, wake)) restorer.WaitForEvent(wake);
  ASSERT_TRUE(copy.TierCostFromJson(0, restorer.TierCostToJson(0)));
  EXPECT_TRUE(copy.Estimate(0).known);
  EXPECT_FALSE(copy.TierCostFromJson(0, nlohmann::json::array()));
}

// A tier that lost a read for ever, and is well otherwise, is asked again soon.
TEST(RestorerTest, ATierThatLostAReadIsAskedAgain) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HeldTier tier;
  ComputeCost cost;
  for (int i = 0; i < 8; ++i) cost.Add(i * 128, 128, Seconds(10));  // loading is worth it
  FakeClock clock;
  Restorer restorer(*pool, {&tier}, cost, clock);
  auto first = restorer.Open(Request(1, 8, Policy::kCake));
  ASSERT_EQ(tier.reads.size(), 4u);
  clock.Advance(Seconds(31));
  (void)first->NextTurn({.chunks = 4});
  ReadRequest lost = std::move(tier.reads.front());
  tier.reads.pop_front();
  for (const ReadRequest& read : std::exchange(tier.reads, {})) {
    read.done({.status = Fail(ErrorCode::kCancelled, "cancelled")});
  }
  auto second = restorer.Open(Request(2, 8, Policy::kCake));
  EXPECT_EQ(tier.gets, 4u) << "given up";
  clock.Advance(Seconds(2));
  (void)second->NextTurn({.chunks = 4});
  EXPECT_EQ(tier.reads.size(), 3u) << "the lost one takes up room";
  clock.Advance(Seconds(2));
  (void)second->NextTurn({.chunks = 4});
  tier.DeliverAll();
  EXPECT_GT(second->Report().loaded(), 0);
  restorer.CheckInvariants();
  first->Abandon();
  second->Abandon();
  lost.done({.status = Fail(ErrorCode::kCancelled, "cancelled")});
  tier.DeliverAll();
}

}  // namespace
}  // namespace kvcake
