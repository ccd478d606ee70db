#include "runahead/partition_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/temp_dir_testing.h"
#include "runahead/chain_model.h"
#include "runahead/chain_testing.h"
#include "runahead/partition_analytic.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

class PartitionSearchTest : public testing::Test {
 protected:
  SearchOptions Options(int tokens, int ranks) const {
    return {.what = "test", .tokens = tokens, .ranks = ranks};
  }
  std::string In(const char* name) const { return dir_.path() + "/" + name; }

  TempDir dir_;
};

// Least at `best`, a bowl around it.
MeasurePartition Bowl(std::vector<double> best) {
  return [best = std::move(best)](const Partition& p) -> Result<double> {
    double seconds = 1;
    for (size_t i = 0; i < best.size(); ++i) {
      seconds += std::pow((p.bounds[i + 1] - best[i]) / 1000, 2);
    }
    return seconds;
  };
}

TEST_F(PartitionSearchTest, TwoRanksAreABinarySearch) {
  const auto result = SearchPartition(Options(16384, 2), Bowl({9728}));
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->best.partition.bounds, (std::vector{0, 9728, 16384}));
  EXPECT_EQ(result->resumed, 0);
  EXPECT_LE(result->measurements, 15);
}

TEST_F(PartitionSearchTest, FindsTheBottomOfBowls) {
  std::mt19937 rng(9);
  for (int i = 0; i < 40; ++i) {
    const int ranks = 2 + i % 4, tokens = 16384, stride = 128;
    std::vector<double> best;
    std::vector<int> nearest{0};
    for (int r = 1; r < ranks; ++r) {
      const int offset = static_cast<int>(rng() % (tokens / (2 * ranks))) - tokens / (4 * ranks);
      best.push_back(tokens * r / ranks + offset);
      nearest.push_back(static_cast<int>(std::lround(best.back() / stride)) * stride);
    }
    nearest.push_back(tokens);
    const auto result = SearchPartition(Options(tokens, ranks), Bowl(best));
    ASSERT_TRUE(result);
    EXPECT_DOUBLE_EQ(result->best.seconds, *Bowl(best)({nearest}));
  }
}

TEST_F(PartitionSearchTest, IsNearTheBestOfChains) {
  std::mt19937 rng(10);
  for (int i = 0; i < 40; ++i) {
    const int ranks = 2 + i % 7;
    const ChainCost cost = RandomChain(rng, ranks);
    const auto measure = [&](const Partition& p) -> Result<double> {
      return PredictChain(cost, p).ttft_s;
    };
    SearchOptions options = Options(16384, ranks);
    options.stride_min_tokens = 64;
    const auto result = SearchPartition(options, measure);
    ASSERT_TRUE(result);
    const Partition analytic = AnalyticPartition(cost, 16384);
    const double above = result->best.seconds / *measure(analytic) - 1;
    EXPECT_LE(above, ranks <= 5 ? 0.02 : 0.1) << "chain " << i << " of " << ranks;
    EXPECT_LE(result->measurements, 60 * ranks);
  }
}

TEST_F(PartitionSearchTest, MeasuresNothingTwiceAndOnlyStrides) {
  std::set<std::vector<int>> seen;
  int reports = 0;
  double least = 1e9;
  SearchOptions options = Options(10000, 4);
  options.progress = [&](const SearchProgress& p) {
    EXPECT_EQ(p.measurements, ++reports);
    EXPECT_LE(p.best.seconds, p.last.seconds);
  };
  const auto bowl = Bowl({3000, 6000, 8000});
  const auto result = SearchPartition(options, [&](const Partition& p) {
    EXPECT_TRUE(seen.insert(p.bounds).second);
    EXPECT_TRUE(CheckPartition(p, 10000, 4));
    for (int r = 1; r < 4; ++r) EXPECT_EQ(p.begin(r) % 128, 0);
    least = std::min(least, *bowl(p));
    return bowl(p);
  });
  ASSERT_TRUE(result);
  EXPECT_EQ(result->best.seconds, least);
  EXPECT_EQ(static_cast<size_t>(result->measurements), seen.size());
  EXPECT_EQ(reports, result->measurements);
}

TEST_F(PartitionSearchTest, ResumedIsAsUninterrupted) {
  const auto bowl = Bowl({5000, 9000, 13000});
  std::vector<std::vector<int>> order;
  const auto whole = SearchPartition(Options(16384, 4), [&](const Partition& p) {
    order.push_back(p.bounds);
    return bowl(p);
  });
  ASSERT_TRUE(whole);
  for (const size_t stop : {size_t{0}, size_t{1}, size_t{7}, order.size() - 1, order.size()}) {
    SearchOptions options = Options(16384, 4);
    options.state_path = In("state.json") + std::to_string(stop);
    std::vector<std::vector<int>> again;
    const auto broken = SearchPartition(options, [&](const Partition& p) -> Result<double> {
      if (again.size() == stop) return Fail(ErrorCode::kIo, "power cut");
      again.push_back(p.bounds);
      return bowl(p);
    });
    EXPECT_EQ(broken.has_value(), stop == order.size());
    const auto resumed = SearchPartition(options, [&](const Partition& p) {
      again.push_back(p.bounds);
      return bowl(p);
    });
    ASSERT_TRUE(resumed);
    EXPECT_EQ(again, order);
    EXPECT_EQ(resumed->best.partition, whole->best.partition);
    EXPECT_EQ(resumed->best.seconds, whole->best.seconds);
    EXPECT_EQ(resumed->measurements, whole->measurements);
    EXPECT_EQ(static_cast<size_t>(resumed->resumed), stop);
  }
}

TEST_F(PartitionSearchTest, AGoodSeedSavesMeasurements) {
  const auto bowl = Bowl({5500, 9900, 13400});
  SearchOptions options = Options(16384, 4);
  const auto plain = SearchPartition(options, bowl);
  options.seed = Partition{{0, 5460, 9860, 13300, 16384}};
  const auto seeded = SearchPartition(options, bowl);
  ASSERT_TRUE(plain && seeded);
  EXPECT_EQ(seeded->best.partition, plain->best.partition);
  EXPECT_LT(seeded->measurements, plain->measurements);
  // What the seed was is a part of the state.
  options.state_path = In("seeded.json");
  ASSERT_TRUE(SearchPartition(options, bowl));
  options.seed.reset();
  const auto resumed = SearchPartition(options, bowl);
  EXPECT_EQ(resumed->resumed, seeded->measurements);
  EXPECT_EQ(resumed->measurements, seeded->measurements);
}

TEST_F(PartitionSearchTest, OneRankIsMeasuredOnce) {
  const auto result = SearchPartition(Options(50, 1), Bowl({}));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->measurements, 1);
  EXPECT_EQ(result->best.partition.bounds, (std::vector{0, 50}));
}

TEST_F(PartitionSearchTest, WhatCannotBeIsRefused) {
  const auto refuses = [&](const SearchOptions& options, const char* says) {
    const auto result = SearchPartition(options, Bowl({500}));
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message, HasSubstr(says));
  };
  refuses(Options(128, 2), "128 tokens are too few for 2 ranks in strides of 128");
  SearchOptions options = Options(1024, 2);
  options.seed = Partition{{0, 100, 1000}};
  refuses(options, "from 0 to 1024");
  options.seed.reset();
  options.state_path = In("state.json");
  ASSERT_TRUE(SearchPartition(options, Bowl({500})));
  options.tokens = 2048;
  refuses(options, "tokens is 1024, this search's is 2048");
  options.tokens = 1024, options.what = "other";
  refuses(options, "what is test, this search's is other");
  options.what = "test", options.ranks = 3;
  refuses(options, "the number of ranks is 2, this search's is 3");
  options.ranks = 2, options.stride_min_tokens = 64;
  refuses(options, "stride_min_tokens is 128, this search's is 64");
  std::ofstream(options.state_path) << "{}";
  refuses(options, "state.json: version is missing");
  const auto negative =
      SearchPartition(Options(1024, 2), [](const Partition&) -> Result<double> { return 0; });
  EXPECT_FALSE(negative);
}

TEST_F(PartitionSearchTest, BrokenStatesAreRefusedByField) {
  SearchState state{.what = "x",
                    .tokens = 100,
                    .stride_min_tokens = 10,
                    .seed = {{0, 50, 100}},
                    .measured = {{{{0, 50, 100}}, 1.5}, {{{0, 60, 100}}, 1.25}}};
  const nlohmann::json good = state.ToJson();
  const auto back = SearchState::FromJson(good, "s.json");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->ToJson(), good);
  const auto refuses = [&](const char* pointer, const nlohmann::json& value, const char* says) {
    nlohmann::json bad = good;
    bad[nlohmann::json::json_pointer(pointer)] = value;
    const auto state = SearchState::FromJson(bad, "s.json");
    ASSERT_FALSE(state) << pointer;
    EXPECT_THAT(state.error().message, testing::AllOf(HasSubstr("s.json: "), HasSubstr(says)));
  };
  refuses("/version", 2, "version");
  refuses("/tokens", 0, "tokens");
  refuses("/tokens", 99, "seed has a bound beyond the prompt");
  refuses("/seed", "no", "seed");
  refuses("/seed/1", 100, "seed is wrong");
  refuses("/seed/1", 50 + (int64_t{1} << 32), "seed has a bound beyond the prompt");
  refuses("/measured", 1, "measured");
  refuses("/measured/1", 1, "measured[1]");
  refuses("/measured/1/seconds", -1, "measured[1]: seconds");
  refuses("/measured/0/bounds", {0, 100}, "measured[0].bounds has another number of ranks");
  refuses("/measured/0/bounds/1", 1.5, "measured[0].bounds");
}

}  // namespace
}  // namespace kvcake
