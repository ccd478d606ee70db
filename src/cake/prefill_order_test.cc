#include "cake/prefill_order.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

std::vector<int> Indices(const std::vector<PrefillTurn>& turns) {
  std::vector<int> indices;
  for (const PrefillTurn& turn : turns) indices.push_back(turn.index);
  return indices;
}

const std::vector<PrefillNeed> kNeeds = {
    {.fresh_chunks = 0, .restoring = true, .rank = 3},
    {.fresh_chunks = 0, .restoring = false},
    {.fresh_chunks = 2, .restoring = true, .rank = 9},
    {.fresh_chunks = 0, .restoring = true, .rank = 1},
};

TEST(PrefillOrderTest, NamesGoBothWays) {
  for (const Schedule schedule : {Schedule::kAdaptive, Schedule::kFcfs}) {
    EXPECT_EQ(ScheduleFromName(ScheduleName(schedule)), schedule);
  }
  EXPECT_FALSE(ScheduleFromName("lifo"));
}

TEST(PrefillOrderTest, FirstComeFirstServed) {
  const auto turns = OrderPrefills(Schedule::kFcfs, kNeeds, Seconds(1));
  EXPECT_EQ(Indices(turns), (std::vector{0, 1, 2, 3}));
  for (const PrefillTurn& turn : turns) EXPECT_FALSE(turn.chunks_max);
}

TEST(PrefillOrderTest, WhatIsStoredNowhereComesFirstThenTheShortestRestoration) {
  const auto turns = OrderPrefills(Schedule::kAdaptive, kNeeds, Seconds(1));
  EXPECT_EQ(Indices(turns), (std::vector{1, 2, 3, 0}));
  EXPECT_FALSE(turns[0].chunks_max);
  EXPECT_EQ(turns[1].chunks_max, 2) << "a hole, not what can be loaded behind it";
  EXPECT_FALSE(turns[2].chunks_max || turns[3].chunks_max);
}

TEST(PrefillOrderTest, TheLastTokensOfAPromptComeBeforeAnothersChunks) {
  EXPECT_EQ(Indices(OrderPrefills(Schedule::kAdaptive,
                                  {{.fresh_chunks = 30, .restoring = true},
                                   {.fresh_chunks = 2, .restoring = false},
                                   {.fresh_chunks = 0, .restoring = false}},
                                  Seconds(1))),
            (std::vector{2, 0, 1}));
}

TEST(PrefillOrderTest, OfWhatIsStoredNowhereTheSoonestDoneComesFirstButWaitingCounts) {
  const auto order = [](double long_age_s) {
    return Indices(
        OrderPrefills(Schedule::kAdaptive,
                      {{.fresh_chunks = 64, .fresh_s = 4, .age_s = long_age_s},
                       {.fresh_chunks = 2, .restoring = true, .fresh_s = 0.2, .age_s = 1},
                       {.fresh_chunks = 1, .fresh_s = 0.1, .age_s = 0}},
                      Seconds(1)));
  };
  EXPECT_EQ(order(2), (std::vector{1, 2, 0}));
  EXPECT_EQ(order(4 / kPrefillAging), (std::vector{1, 0, 2})) << "none that comes from now on";
}

TEST(PrefillOrderTest, NewPromptsOfUnknownCostAreServedInOrderOfArrival) {
  EXPECT_EQ(Indices(OrderPrefills(Schedule::kAdaptive,
                                  {{.fresh_chunks = 30, .age_s = 3},
                                   {.fresh_chunks = 2, .age_s = 2},
                                   {.fresh_chunks = 1, .age_s = 1}},
                                  Seconds(1))),
            (std::vector{0, 1, 2}));
}

TEST(PrefillOrderTest, AHoleThatNobodyElseWaitsBehindMayGrowIntoALongerSlice) {
  const auto turns = OrderPrefills(
      Schedule::kAdaptive,
      {{.fresh_chunks = 1, .restoring = true}, {.fresh_chunks = 0, .restoring = true}}, Seconds(1));
  EXPECT_EQ(Indices(turns), (std::vector{0, 1}));
  EXPECT_FALSE(turns[0].chunks_max);
}

TEST(PrefillOrderTest, ARestorationThatStandsStillComesBeforeAllButOnlyOne) {
  std::vector<PrefillNeed> needs = kNeeds;
  needs[0].idle = Seconds(1.5);
  needs.push_back({.fresh_chunks = 1, .restoring = true, .idle = Seconds(9)});  // not the first
  needs[3].idle = Seconds(1.2);
  EXPECT_EQ(Indices(OrderPrefills(Schedule::kAdaptive, needs, Seconds(1))),
            (std::vector{0, 1, 2, 4, 3}));
  EXPECT_EQ(Indices(OrderPrefills(Schedule::kAdaptive, needs, Seconds(2))),
            (std::vector{1, 2, 4, 3, 0}));
  needs[2].idle = Seconds(3);  // the first that only compute can help: short prompts never end
  EXPECT_EQ(Indices(OrderPrefills(Schedule::kAdaptive, needs, Seconds(2))),
            (std::vector{2, 1, 4, 3, 0}));
}

// Scored prompts are not restored, and the last tokens of others' never end.
TEST(PrefillOrderTest, APromptThatStandsStillComesBeforeAllButOnlyTheFirst) {
  const auto order = [](Seconds first, Seconds second) {
    return Indices(OrderPrefills(Schedule::kAdaptive,
                                 {{.fresh_chunks = 0, .idle = Seconds(99)},
                                  {.fresh_chunks = 2, .fresh_s = 1, .idle = first},
                                  {.fresh_chunks = 2, .fresh_s = 2, .idle = second},
                                  {.fresh_chunks = 0, .restoring = true, .idle = Seconds(5)}},
                                 Seconds(1)));
  };
  EXPECT_EQ(order(Seconds(9), Seconds(99)), (std::vector{1, 0, 2, 3}));
  EXPECT_EQ(order(Seconds(3), Seconds(99)), (std::vector{3, 0, 1, 2})) << "a restoration, longer";
  EXPECT_EQ(order(Seconds(0), Seconds(99)), (std::vector{3, 0, 1, 2}));
  EXPECT_EQ(order(Seconds(5), Seconds(99)), (std::vector{1, 0, 2, 3})) << "who came first";
}

}  // namespace
}  // namespace kvcake
