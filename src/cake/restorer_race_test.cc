// The Restorer among real threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/mutex.h"
#include "cake/fake_engine_testing.h"
#include "cake/restorer_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

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

struct Race {
  int delay_us_max, fail_percent, documents;
};

// What the threads have met: without it a race shows nothing of it.
struct Met {
  int computed = 0, loaded = 0, failed = 0, shared = 0, overtaken = 0, cancelled = 0;

  void Add(const RestoreReport& report) {
    computed += report.tokens_computed > 5;  // which nobody stores
    loaded += report.loaded() > 0;
    failed += report.chunks_failed > 0;
    shared += report.tokens_reused > 0;
    overtaken += std::any_of(report.timeline.begin(), report.timeline.end(),
                             [](const auto& entry) { return entry.outcome == Outcome::kLate; });
  }
  // All that such a race can meet.
  bool All(const Race& race) const {
    const bool some_load = race.fail_percent < 100, slow = race.delay_us_max >= 300;
    return computed > 0 && shared > 0 && cancelled > 0 && (loaded > 0) == some_load &&
           (failed > 0) == (race.fail_percent > 0) && (overtaken > 0 || !slow);
  }
};

class RestorerRaceTest : public testing::TestWithParam<Race> {};

TEST_P(RestorerRaceTest, TenRestorationsEndWithTheRightPages) {
  const Race race = GetParam();
  Met met;
  // Threads decide what is met when: as often as it takes, but not for ever.
  for (int seed = 0; seed < 15 || (seed < 150 && !met.All(race)); ++seed) {
    auto pool = std::move(PagePool::Create(kLayout, 600 * kLayout.page_bytes()).value());
    ComputeCost cost;
    {
      ThreadedTier tier(race.delay_us_max, race.fail_percent, seed);
      const auto restorer = NewRestorer(*pool, {&tier}, cost, Clock::Real());
      FakeEngine engine{*pool, cost};
      engine.rng.seed(seed);
      std::vector<RestoreRequest> requests;
      std::vector<std::shared_ptr<Restoration>> open;
      for (int i = 0; i < 10; ++i) {
        const auto policy = i < 7 ? Policy::kCake : static_cast<Policy>(i % 3);
        requests.push_back(Request(i % race.documents, 30 + i, policy));
        open.push_back(restorer->Open(requests.back()));
      }
      int left = 10;
      while (left > 0) {
        engine.wake = TimePoint::max();
        for (size_t i = 0; i < open.size(); ++i) {
          if (!open[i]) continue;
          if (engine.rng() % 200 == 0) {  // cancelled, with reads in flight
            open[i].reset();
            --left;
            ++met.cancelled;
            continue;
          }
          CheckInvariants(*restorer);
          if (engine.Step(requests[i], *open[i])) continue;
          const RestoreReport report = open[i]->Report();
          int sum = report.tokens_computed + report.tokens_reused;
          for (const auto& [name, tokens] : report.tokens_loaded) sum += tokens;
          EXPECT_EQ(sum, requests[i].prompt_tokens);
          met.Add(report);
          const PageTable pages = open[i]->TakePages();
          for (size_t c = 0; c < pages.size(); ++c) {
            EXPECT_EQ(
                std::memcmp(pool->Data(pages[c].id()), &requests[i].keys[c], sizeof(ChunkKey)), 0);
          }
          open[i].reset();
          --left;
        }
        if (left > 0) restorer->WaitForEvent(engine.wake);
      }
    }
    EXPECT_EQ(pool->Stats().referenced, 0u);
  }
  EXPECT_TRUE(met.All(race)) << met.computed << " computed, " << met.loaded << " loaded, "
                             << met.failed << " failed, " << met.shared << " shared, "
                             << met.overtaken << " overtaken, " << met.cancelled << " cancelled";
}

INSTANTIATE_TEST_SUITE_P(Rates, RestorerRaceTest,
                         testing::Values(Race{0, 0, 1}, Race{50, 0, 1}, Race{300, 20, 1},
                                         Race{2000, 5, 2}, Race{300, 100, 3}));

TEST(RestorerTest, TierCostsSurviveJson) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  ComputeCost cost;
  ThreadedTier tier(100, 0, 1);
  const auto restorer = NewRestorer(*pool, {&tier}, cost, Clock::Real());
  const auto copy = NewRestorer(*pool, {&tier}, cost, Clock::Real());
  FakeEngine engine{*pool, cost};
  const RestoreRequest request = Request(1, 40, Policy::kLoad);
  auto restoration = restorer->Open(request);
  while (engine.Step(request, *restoration)) restorer->WaitForEvent(engine.wake);
  ASSERT_TRUE(copy->TierCostFromJson(0, restorer->TierCostToJson(0)));
  EXPECT_DOUBLE_EQ(copy->TierCostToJson(0)["bytes_per_s"].get<double>(),
                   restorer->TierCostToJson(0)["bytes_per_s"].get<double>());
  EXPECT_FALSE(copy->TierCostFromJson(0, nlohmann::json::array()));
}

}  // namespace
}  // namespace kvcake
