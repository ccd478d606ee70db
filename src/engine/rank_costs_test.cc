#include "engine/rank_costs.h"

#include <gtest/gtest.h>

#include "base/temp_dir_testing.h"
#include "model/synth.h"

namespace kvcake {
namespace {

TEST(RankCostsTest, RanksAreLikeThisProcess) {
  const TempDir dir;
  ASSERT_TRUE(WriteSynthModel("tiny", dir.path() + "/model"));
  RuntimeOptions options;
  options.model_dir = dir.path() + "/model";
  options.ram_capacity_bytes = 64 << 20;
  options.chunk_tokens = 32;
  options.threads = 1;
  const auto runtime = Runtime::Create(options).value();
  const LinkCost link{.alpha_s = 1, .bytes_per_s = 2};
  const ChainCost cost = ChainCostOf(*runtime, 3, link);
  const KvLayout& layout = runtime->pool().layout();
  EXPECT_EQ(cost.ranks.size(), 3u);
  EXPECT_EQ(cost.link.bytes_per_s, 2);
  EXPECT_EQ(cost.layers, layout.layers);
  EXPECT_EQ(cost.bytes_per_token(), static_cast<double>(layout.bytes_per_token()));
  const ChainPlannerOptions planner = PlannerOptionsOf(*runtime, link);
  EXPECT_EQ(planner.chunk_tokens, 32);
  EXPECT_EQ(planner.layers, layout.layers);
  EXPECT_EQ(planner.bytes_per_token_layer, cost.bytes_per_token_layer);
  EXPECT_EQ(planner.link.alpha_s, 1);
  EXPECT_EQ(planner.time().b, runtime->compute_cost().fit().time().b);
}

}  // namespace
}  // namespace kvcake
