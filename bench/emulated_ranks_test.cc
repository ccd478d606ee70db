#include "bench/emulated_ranks.h"

#include <gtest/gtest.h>

#include "bench/emulated_ranks_testing.h"
#include "bench/harness.h"
#include "bench/runahead_cell.h"
#include "runahead/chain_model.h"

namespace kvcake::bench {
namespace {

EmulatedRanksOptions Options() { return SmallRanks(/*ranks=*/3, /*link_bytes_per_s=*/10e9); }

// Sleeps and links are never early: what is measured is at least what it stands for.
TEST(EmulatedRanksTest, SlowMotionIsReportedAtFullSpeed) {
  constexpr int kTokens = 1536;
  constexpr double kSlow = 3;
  EmulatedRanksOptions options = Options();
  options.slow_motion = kSlow;
  EmulatedRanks ranks(options);
  const auto prompt = RandomPrompt(kTokens, ranks.trial().vocab_size(), 1);
  const Partition even = EvenPartition(kTokens, 3);
  std::optional<int32_t> token;
  for (const RankMethodPlan& plan : PlansWith(even)) {
    const TimePoint began = Clock::Real().Now();
    const auto run = ranks.trial().Several(prompt, plan.how, plan.partition);
    const double took_s = (Clock::Real().Now() - began).count();
    ASSERT_TRUE(run) << plan.name << ": " << run.error().message;
    EXPECT_EQ(run->token, token.value_or(run->token)) << plan.name;
    token = run->token;
    EXPECT_LE(run->ttft_s * kSlow, took_s) << plan.name;
    EXPECT_GE(run->ttft_s, run->compute_most_s) << plan.name;
    EXPECT_GE(run->compute_most_s, ranks.cost().ranks[0].SecondsFor(0, kTokens / 3.0)) << plan.name;
  }
  const auto chain = ranks.trial().Several(prompt, RankMethod::kChain, even);
  ASSERT_TRUE(chain);
  EXPECT_GE(chain->ttft_s, PredictChain(ranks.cost(), even).bound_s);
}

}  // namespace
}  // namespace kvcake::bench
