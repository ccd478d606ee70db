// The Restorer among real threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cake/fake_engine_testing.h"
#include "cake/restorer_testing.h"
#include "cake/threaded_tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

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
