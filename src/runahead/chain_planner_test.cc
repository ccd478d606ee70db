#include "runahead/chain_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <thread>

#include "base/temp_dir_testing.h"
#include "io/faulty_file_system_testing.h"

namespace kvcake {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr SliceTime kTime{.b = 1e-3, .a = 1e-7};
const PartitionTableKey kTableKey{.model = "m", .machine = "two cores", .ranks = 2};

ChainPlannerOptions Options(const std::string& partition = "analytic") {
  return {.partition = partition,
          .table_key = kTableKey,
          .chunk_tokens = 128,
          .layers = 4,
          .bytes_per_token_layer = 1000,
          .time = [] { return kTime; }};
}

std::unique_ptr<ChainPlanner> New(ChainPlannerOptions options) {
  auto planner = NewChainPlanner(std::move(options));
  EXPECT_TRUE(planner) << planner.error().message;
  return *std::move(planner);
}

// That a prompt of 4096 tokens was computed on two ranks of these speeds.
void Teach(ChainPlanner& planner, double first, double second) {
  RankJob job{.partition = EvenPartition(4096, 2)};
  const std::vector<RankReport> reports = {{.compute_s = kTime.SecondsFor(0, 2048) / first},
                                           {.compute_s = kTime.SecondsFor(2048, 2048) / second}};
  planner.Learn(job, reports);
}

TEST(ChainPlannerTest, ATablesPartitionsAreOfWholeChunks) {
  ChainPlannerOptions options = Options("table");
  options.table.Set(kTableKey, {{0, 2600, 4096}});
  options.table.Set(kTableKey, {{0, 5000, 8192}});
  const auto planner = New(options);
  EXPECT_THAT(planner->Plan(0, 4096, 2)->bounds, ElementsAre(0, 2560, 4096));
  EXPECT_THAT(planner->Plan(0, 8000, 2)->bounds, ElementsAre(0, 4864, 8000));
  EXPECT_THAT(planner->Plan(0, 256, 2)->bounds, ElementsAre(0, 128, 256)) << "a part for each";
  EXPECT_FALSE(planner->Plan(0, 255, 2)) << "too short";
  // After a beginning that is kept, the measured shares would be wrong.
  EXPECT_EQ(planner->Plan(4096, 4096, 2), New(Options())->Plan(4096, 4096, 2));
}

TEST(ChainPlannerTest, ATableWithoutTheKeyIsAnErrorAtOnce) {
  ChainPlannerOptions options = Options("table");
  auto planner = NewChainPlanner(options);
  ASSERT_FALSE(planner);
  EXPECT_EQ(planner.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(planner.error().message, HasSubstr("two cores"));
  PartitionTableKey other = kTableKey;
  other.machine = "four cores";
  options.table.Set(other, {{0, 2600, 4096}});
  EXPECT_FALSE(NewChainPlanner(options));
}

TEST(ChainPlannerTest, SharesAreAsManyAsTheRanks) {
  EXPECT_TRUE(NewChainPlanner(Options("0.5,0.5")));
  const auto less = NewChainPlanner(Options("0.5,0.3"));
  ASSERT_FALSE(less) << "before there is a prompt";
  EXPECT_THAT(less.error().message, HasSubstr("sum to 0.8"));
  for (const char* wrong : {"0.5,0.3,0.2", "4096", "2048,1024,1024", "nonsense", ""}) {
    const auto planner = NewChainPlanner(Options(wrong));
    ASSERT_FALSE(planner) << wrong;
    EXPECT_EQ(planner.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(planner.error().message, HasSubstr("for 2 ranks")) << wrong;
  }
}

TEST(ChainPlannerTest, ASlowLinkLeavesOneProcess) {
  ChainPlannerOptions options = Options();
  EXPECT_EQ(New(options)->Plan(0, 4096, 2)->ranks(), 2);
  options.link = {.bytes_per_s = 4096 * 4000 / kTime.SecondsFor(0, 4096) / 10};
  EXPECT_EQ(New(options)->Plan(0, 4096, 2)->ranks(), 1);
}

TEST(ChainPlannerTest, ANewSurveyChangesThePlan) {
  ChainPlannerOptions options = Options();
  EXPECT_FALSE(New(options)->learns_links()) << "what links are is believed";
  options.link_of = [](const Survey& survey) -> LinkCost {
    return {.alpha_s = survey.latency_s, .bytes_per_s = survey.bytes_per_s};
  };
  const auto planner = New(options);
  ASSERT_TRUE(planner->learns_links());
  const Partition fast = *planner->Plan(0, 4096, 2);
  ASSERT_EQ(fast.ranks(), 2);
  const double slow = 4096 * 4000 / kTime.SecondsFor(0, 4096) / 10;
  planner->LearnLinks({.bytes_per_s = slow});
  EXPECT_EQ(planner->Plan(0, 4096, 2)->ranks(), 1);
  for (const double nonsense : {std::nan(""), -1.0, 0.0}) {
    planner->LearnLinks({.bytes_per_s = nonsense});
    EXPECT_EQ(planner->Plan(0, 4096, 2)->ranks(), 1) << nonsense;
  }
  for (const double nonsense : {std::nan(""), -1.0, HUGE_VAL}) {
    planner->LearnLinks({.latency_s = nonsense, .bytes_per_s = 1e12});
    EXPECT_EQ(planner->Plan(0, 4096, 2)->ranks(), 1) << nonsense;
  }
  planner->LearnLinks({.bytes_per_s = 1e12});
  EXPECT_EQ(*planner->Plan(0, 4096, 2), fast);
  options.partition = "even";
  EXPECT_FALSE(New(options)->learns_links());
}

TEST(ChainPlannerTest, AChainThatBeginsBeforeTheLeaderMustMakeUpForThat) {
  const auto planner = New(Options());
  const auto pays = [&](int alone_from) {
    return planner->Pays(2048, *planner->Plan(2048, 4096, 2), alone_from);
  };
  EXPECT_TRUE(pays(2048));
  EXPECT_TRUE(pays(2048 + 512));
  EXPECT_FALSE(pays(2048 + 2200)) << "half of it is there already";
  EXPECT_FALSE(pays(2048 + 4000));
  const auto always = New(Options("even"));
  EXPECT_TRUE(always->Pays(2048, *always->Plan(2048, 4096, 2), 2048 + 4000));
  for (int i = 0; i < 20; ++i) Teach(*planner, 0.5, 1);
  EXPECT_FALSE(pays(2048 + 1600)) << "the other rank is slower";
  for (int i = 0; i < 20; ++i) Teach(*planner, 1, 0.5);
  EXPECT_TRUE(pays(2048 + 2200)) << "the leader is, alone too";
  const auto far = New(Options());
  EXPECT_TRUE(far->Pays(1 << 15, *far->Plan(1 << 15, 4096, 2), 1 << 15)) << "as alone is far, too";
}

// Each of several ranks would have to make the way that one makes once.
TEST(ChainPlannerTest, WhatGrowsWithThePrefixAloneIsNotShared) {
  ChainPlannerOptions options = Options();
  options.time = [] { return SliceTime{.g = 1e-4, .b = 1e-3}; };
  EXPECT_EQ(New(options)->Plan(0, 4096, 2)->ranks(), 2);
  EXPECT_EQ(New(options)->Plan(1 << 22, 4096, 2)->ranks(), 1);
}

// One prompt that something else has slowed down moves the plan half the way.
TEST(ChainPlannerTest, APromptCountsAsMuchAsAllBefore) {
  const auto once = New(Options()), often = New(Options());
  for (const auto& planner : {once.get(), often.get()}) ASSERT_TRUE(planner->Plan(0, 4096, 2));
  Teach(*once, 0.5, 1);
  for (int i = 0; i < 60; ++i) Teach(*often, 0.75, 1);
  EXPECT_EQ(*once->Plan(0, 4096, 2), *often->Plan(0, 4096, 2));
}

// A short prompt's ranks are the last ones.
TEST(ChainPlannerTest, WhatIsLearntIsOfTheRanksThatWereUsed) {
  const auto planner = New(Options());
  const Partition before = *planner->Plan(0, 4096, 3);
  ASSERT_EQ(before.ranks(), 3);
  for (int i = 0; i < 20; ++i) Teach(*planner, 0.5, 1);
  const Partition after = *planner->Plan(0, 4096, 3);
  ASSERT_EQ(after.ranks(), 3);
  EXPECT_GT(after.size(0), before.size(0));
  EXPECT_LT(after.size(1), before.size(1) * 3 / 4);
}

// What follows a long beginning takes longer.
TEST(ChainPlannerTest, RanksThatAreAsFastAsTheyShouldBeAfterAPrefixChangeNothing) {
  const auto planner = New(Options());
  const Partition before = *planner->Plan(0, 4096, 2);
  const RankJob job{.origin = 1 << 16, .partition = EvenPartition(4096, 2)};
  planner->Learn(job,
                 std::vector<RankReport>{{.compute_s = kTime.SecondsFor(1 << 16, 2048)},
                                         {.compute_s = kTime.SecondsFor((1 << 16) + 2048, 2048)}});
  EXPECT_EQ(*planner->Plan(0, 4096, 2), before);
}

TEST(ChainPlannerTest, NothingIsLearntFromWhatCannotBe) {
  const auto planner = New(Options());
  const Partition before = *planner->Plan(0, 4096, 2);
  for (const double nonsense :
       {std::nan(""), -1.0, 0.0, 1e-300, 1e300, std::numeric_limits<double>::infinity()}) {
    RankJob job{.partition = EvenPartition(4096, 2)};
    const std::vector<RankReport> reports = {{.compute_s = nonsense},
                                             {.compute_s = kTime.SecondsFor(2048, 2048)}};
    planner->Learn(job, reports);
    EXPECT_EQ(*planner->Plan(0, 4096, 2), before) << nonsense;
  }
}

TEST(ChainPlannerTest, ARankThatWasTooSlowIsTriedAgain) {
  const auto planner = New(Options());
  const auto used = [&] { return planner->Plan(0, 4096, 2)->ranks() == 2; };
  ASSERT_TRUE(used());
  for (int i = 0; i < 20; ++i) Teach(*planner, 0.01, 1);
  const auto prompts_without = [&] {
    int prompts = 0;
    for (; !used() && prompts < 1000; ++prompts) {
      EXPECT_FALSE(used()) << "planning again says nothing of ranks";
      planner->ForgetSlowness(0, *planner->Plan(0, 4096, 2), 2, 0);
    }
    return prompts;
  };
  const int first = prompts_without();
  EXPECT_GT(first, 20) << "one that stays slow costs few prompts something";
  EXPECT_LT(first, 200);
  Teach(*planner, 0.01, 1);
  const int second = prompts_without();
  EXPECT_GT(second, 20);
  EXPECT_LT(second, 200);
  for (int i = 0; i < 20; ++i) Teach(*planner, 1, 1);
  EXPECT_EQ(planner->Plan(0, 4096, 2), New(Options())->Plan(0, 4096, 2));
}

// Only the leader has the prompt's beginning: the plan uses the other rank, and does not pay.
TEST(ChainPlannerTest, ARankThatIsTooSlowForWhatTheLeaderHasIsTriedAgain) {
  const auto planner = New(Options());
  constexpr int kHas = 1536, kTokens = 4096;
  const auto pays = [&] { return planner->Pays(0, *planner->Plan(0, kTokens, 2), kHas); };
  const auto forget = [&](int alone_from) {
    planner->ForgetSlowness(0, EvenPartition(kTokens, 1), 2, alone_from);
  };
  ASSERT_TRUE(pays());
  for (int i = 0; i < 20; ++i) Teach(*planner, 0.4, 1);
  ASSERT_EQ(planner->Plan(0, kTokens, 2)->ranks(), 2);
  ASSERT_FALSE(pays());
  const Partition before = *planner->Plan(0, kTokens, 2);
  for (int i = 0; i < 1000; ++i) forget(4000);
  EXPECT_EQ(*planner->Plan(0, kTokens, 2), before) << "of no use, however fast it is";
  int prompts = 0;
  for (; !pays() && prompts < 1000; ++prompts) forget(kHas);
  EXPECT_GT(prompts, 5);
  EXPECT_LT(prompts, 100);
}

TEST(ChainPlannerTest, PromptsThatAreTooShortForARankLeaveItsSpeed) {
  ChainPlannerOptions options = Options();
  options.link.alpha_s = 0.1;
  const auto planner = New(options);
  ASSERT_EQ(planner->Plan(0, 4096, 2)->ranks(), 2);
  for (int i = 0; i < 20; ++i) Teach(*planner, 0.5, 1);
  const Partition before = *planner->Plan(0, 4096, 2);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(planner->Plan(0, 256, 2)->ranks(), 1);
    planner->ForgetSlowness(0, *planner->Plan(0, 256, 2), 2, 0);
  }
  EXPECT_EQ(*planner->Plan(0, 4096, 2), before);
}

TEST(ChainPlannerTest, PromptsThatHaveNoChunkForEachRankLeaveTheirSpeeds) {
  const auto planner = New(Options());
  ASSERT_EQ(planner->Plan(0, 4096, 2)->ranks(), 2);
  for (int i = 0; i < 20; ++i) Teach(*planner, 0.5, 1);
  const Partition before = *planner->Plan(0, 4096, 2);
  for (int i = 0; i < 100; ++i) planner->ForgetSlowness(0, EvenPartition(255, 1), 2, 0);
  EXPECT_EQ(*planner->Plan(0, 4096, 2), before);
}

TEST(ChainPlannerTest, SpeedsComeBackFromTheirFile) {
  const TempDir dir;
  ChainPlannerOptions options = Options();
  const Partition even_speeds = *New(options)->Plan(0, 4096, 2);
  options.speeds_path = dir.path() + "/ranks.json";
  Partition learnt;
  {
    const auto planner = New(options);
    EXPECT_EQ(planner->Plan(0, 4096, 2), even_speeds);
    for (int i = 0; i < 20; ++i) Teach(*planner, 0.5, 1);
    Teach(*planner, 0.25, 1);  // tells the last that is kept from those before
    learnt = *planner->Plan(0, 4096, 2);
  }
  EXPECT_LT(learnt.size(0), even_speeds.size(0) * 3 / 4) << "half as fast";
  while (New(options)->Plan(0, 4096, 2) != learnt) std::this_thread::yield();  // a busy machine
  // Another number of ranks is another chain.
  EXPECT_EQ(New(options)->Plan(0, 4096, 3), New(Options())->Plan(0, 4096, 3));
  for (const char* damaged : {"", "{}", "[1, \"x\"]", "[0, 1]", "[1e9, 1]"}) {
    std::ofstream(options.speeds_path) << damaged;
    EXPECT_EQ(New(options)->Plan(0, 4096, 2), even_speeds) << damaged;
  }
}

TEST(ChainPlannerTest, ADirectoryThatHangsKeepsNobodyWaiting) {
  const TempDir dir;
  // A write that hangs may outlast what has begun it.
  static FaultyFileSystem& fs = *new FaultyFileSystem(FileSystem::Real(), 1);
  ChainPlannerOptions options = Options();
  options.speeds_path = dir.path() + "/ranks.json";
  options.fs = &fs;
  const Partition even_speeds = *New(Options())->Plan(0, 4096, 2);
  Partition learnt;
  fs.Set({.change_stall = 1});
  {
    const auto planner = New(options);
    EXPECT_EQ(planner->Plan(0, 4096, 2), even_speeds);
    Teach(*planner, 0.5, 1);
    while (fs.faults() == 0) std::this_thread::yield();
    for (int i = 0; i < 20; ++i) Teach(*planner, 0.5, 1);
    EXPECT_EQ(fs.faults(), 1u) << "the others wait for the first";
    learnt = *planner->Plan(0, 4096, 2);
  }
  fs.Set({});
  fs.ReleaseStalled();
  // The last is kept after the first, and nothing is written in `dir` from then on.
  while (*New(options)->Plan(0, 4096, 2) != learnt) std::this_thread::yield();
}

}  // namespace
}  // namespace kvcake
