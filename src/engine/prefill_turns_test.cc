#include "engine/prefill_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcake {
namespace {

using testing::ElementsAre;

constexpr int kTurnChunk = 16;
constexpr PrefillNeed kRestoring{.restoring = true};
constexpr PrefillNeed kTail{};

// Prompts that want so many tokens and restorations that want so many chunks; notes what it is
// asked.
class Script : public PrefillTaker {
 public:
  struct Turn {
    int index = 0;
    int chunks = 0;  // of a prompt: tokens_max
    double share = 1;
    bool operator==(const Turn&) const = default;
  };
  explicit Script(std::vector<int> wants) : wants_(std::move(wants)) {}

  int Prefill(int index, int tokens_max) override {
    turns.push_back({index, tokens_max});
    return std::min(wants_[index], tokens_max);
  }
  ComputeTurn Ask(int index, const ComputeBudget& budget) override {
    turns.push_back({index, budget.chunks, budget.share});
    if (ends) {
      ComputeTurn turn = *ends;
      if (turn.kind == ComputeTurn::Kind::kWait) turn.wait_until += Seconds(index);
      return turn;
    }
    const int count = std::min(wants_[index], budget.chunks);
    const Claim claim{.first = 10 * index, .count = count};
    return {.kind = count > 0 ? ComputeTurn::Kind::kSlice : ComputeTurn::Kind::kStarved,
            .claim = claim};
  }
  int Restore(int index, const Claim& claim, int tokens_max) override {
    tokens_most.push_back(tokens_max);
    return one_slice ? *one_slice : claim.count * kTurnChunk;
  }

  std::vector<Turn> turns;
  std::vector<int> tokens_most;
  std::optional<ComputeTurn> ends;  // of every restoration's turn; later ones wait longer
  std::optional<int> one_slice;     // what a slice takes of the step

 private:
  const std::vector<int> wants_;
};

PrefillBudget Budget(int chunks, Schedule schedule = Schedule::kFcfs) {
  return {.tokens = chunks * kTurnChunk,
          .room_tokens = chunks * kTurnChunk,
          .chunk_tokens = kTurnChunk,
          .schedule = schedule};
}

TEST(PrefillTurnsTest, EachGetsWhatThoseBeforeItHaveLeft) {
  Script script({1, 20, 9});
  const auto turns =
      TakePrefillTurns(Budget(4), {kRestoring, kTail, kRestoring}, TimePoint(), script);
  EXPECT_THAT(script.turns, ElementsAre(Script::Turn{0, 4, 1.0}, Script::Turn{1, 48},
                                        Script::Turn{2, 1, 28.0 / 64}));
  EXPECT_THAT(script.tokens_most, ElementsAre(64, 28));
  EXPECT_EQ(turns.wanted_chunk, 0);
  EXPECT_EQ(turns.wake_at, TimePoint::max());
}

TEST(PrefillTurnsTest, ThoseWhoGetNothingCountOnNothing) {
  Script script({4, 1});
  const auto turns = TakePrefillTurns(Budget(4), {kRestoring, kRestoring}, TimePoint(), script);
  EXPECT_THAT(script.turns, ElementsAre(Script::Turn{0, 4, 1.0}, Script::Turn{1, 0, 0.0}));
  EXPECT_EQ(turns.wanted_chunk, 0) << "of the first";
  Script less({1, 40, 1});  // leaves half a chunk
  TakePrefillTurns(Budget(4), {kRestoring, kTail, kRestoring}, TimePoint(), less);
  EXPECT_EQ(less.turns[2], (Script::Turn{2, 0, 0.0}));
}

TEST(PrefillTurnsTest, AChunkIsForcedInOnceAndWhereThereIsRoom) {
  PrefillBudget budget = Budget(1);
  const std::vector<PrefillNeed> needs = {kTail, kRestoring, kRestoring};
  Script none({10, 1, 1});
  EXPECT_EQ(TakePrefillTurns(budget, needs, TimePoint(), none).wanted_chunk, 10);
  EXPECT_TRUE(none.tokens_most.empty());
  budget.room_tokens = 10 + 2 * kTurnChunk;
  Script once({10, 1, 1});
  TakePrefillTurns(budget, needs, TimePoint(), once);
  EXPECT_THAT(once.tokens_most, ElementsAre(kTurnChunk));
  EXPECT_EQ(once.turns.size(), 3u);
}

// A scored prompt is not restored.
TEST(PrefillTurnsTest, AChunkIsForcedInForAPromptOfWhichChunksAreMissing) {
  constexpr PrefillNeed kFresh{.fresh_chunks = 2};
  PrefillBudget budget = Budget(1);
  const std::vector<PrefillNeed> needs = {kTail, kFresh, kFresh, kRestoring};
  Script none({10, 40, 40, 1});
  TakePrefillTurns(budget, needs, TimePoint(), none);
  EXPECT_THAT(none.turns, ElementsAre(Script::Turn{0, 16}, Script::Turn{1, 6}, Script::Turn{2, 0},
                                      Script::Turn{3, 0, 0.0}));
  budget.room_tokens = 10 + 3 * kTurnChunk;
  Script once({10, 40, 40, 1});
  TakePrefillTurns(budget, needs, TimePoint(), once);
  EXPECT_THAT(once.turns, ElementsAre(Script::Turn{0, 16}, Script::Turn{1, 16}, Script::Turn{2, 0},
                                      Script::Turn{3, 0, 0.0}));
  budget.restorations = ComputeBudget{.chunks = 1, .share = 0.5};  // it has none of that
  Script shared({10, 40, 40, 1});
  TakePrefillTurns(budget, needs, TimePoint(), shared);
  EXPECT_EQ(shared.turns[1], (Script::Turn{1, 16}));
}

TEST(PrefillTurnsTest, RestorationsGetNoMoreThanTheirShare) {
  PrefillBudget budget = Budget(4);
  budget.restorations = ComputeBudget{.chunks = 3, .share = 0.7};
  Script script({2, 40, 5, 1});
  TakePrefillTurns(budget, {kRestoring, kTail, kRestoring, kRestoring}, TimePoint(), script);
  EXPECT_THAT(script.turns, ElementsAre(Script::Turn{0, 3, 0.7}, Script::Turn{1, 32},
                                        Script::Turn{2, 0, 0.7}, Script::Turn{3, 0, 0.7}))
      << "the prompt has left no chunk";
  EXPECT_THAT(script.tokens_most, ElementsAre(48));
  Script forced({10, 1});
  PrefillBudget small = Budget(1);
  small.room_tokens = 4 * kTurnChunk;
  small.restorations = ComputeBudget{.chunks = 1, .share = 0.5};
  TakePrefillTurns(small, {kTail, kRestoring}, TimePoint(), forced);
  EXPECT_EQ(forced.turns[1], (Script::Turn{1, 0, 0.5})) << "no chunk is forced in for one";
  Script tailed({2, 9});
  tailed.one_slice = 2 * kTurnChunk + 5;
  TakePrefillTurns(budget, {kRestoring, kRestoring}, TimePoint(), tailed);
  EXPECT_EQ(tailed.turns[1], (Script::Turn{1, 0, 0.7})) << "the prompt's end is of the share";
  Script starved({1});
  budget.restorations->chunks = 0;
  EXPECT_EQ(TakePrefillTurns(budget, {kRestoring}, TimePoint(), starved).wanted_chunk, 0);
}

// Two prompts that nothing has stored: each leaves what loading could bring to others.
TEST(PrefillTurnsTest, FreshPromptsAreBoundedByWhatIsFresh) {
  Script script({9, 9});
  const std::vector<PrefillNeed> needs = {{.fresh_chunks = 1, .restoring = true, .fresh_s = 2},
                                          {.fresh_chunks = 2, .restoring = true, .fresh_s = 1}};
  TakePrefillTurns(Budget(4, Schedule::kAdaptive), needs, TimePoint(), script);
  EXPECT_THAT(script.turns, ElementsAre(Script::Turn{1, 2, 1.0}, Script::Turn{0, 1, 0.5}));
}

TEST(PrefillTurnsTest, WhereAStepIsOneSliceTheOthersLoad) {
  Script script({1, 1});
  PrefillBudget budget = Budget(4);
  script.one_slice = budget.tokens;
  TakePrefillTurns(budget, {kRestoring, kRestoring}, TimePoint(), script);
  budget.restorations = ComputeBudget{.chunks = 2, .share = 0.5};
  TakePrefillTurns(budget, {kRestoring, kRestoring}, TimePoint(), script);
  EXPECT_THAT(script.turns, ElementsAre(Script::Turn{0, 4, 1.0}, Script::Turn{1, 0, 0.0},
                                        Script::Turn{0, 2, 0.5}, Script::Turn{1, 0, 0.5}));
}

TEST(PrefillTurnsTest, TheFirstThatWaitsIsAskedFirst) {
  Script script({1});
  const TimePoint now = TimePoint() + Seconds(5);
  script.ends = ComputeTurn{.kind = ComputeTurn::Kind::kWait, .wait_until = now + Seconds(1)};
  EXPECT_EQ(TakePrefillTurns(Budget(4), {kRestoring, kRestoring}, now, script).wake_at,
            now + Seconds(1));
  script.ends = ComputeTurn{.kind = ComputeTurn::Kind::kDone};
  const auto done = TakePrefillTurns(Budget(4), {kRestoring}, now, script);
  EXPECT_EQ(done.wake_at, now);
  EXPECT_FALSE(done.wanted_chunk);
}

TEST(PrefillTurnsTest, NeedsOfRestorationsSayAll) {
  const PrefillNeed need =
      RestorationNeed({.fresh_chunks = 3, .fresh_s = 0.5, .idle = Seconds(2), .rank = 7}, 11);
  EXPECT_TRUE(need.restoring);
  EXPECT_EQ(need.fresh_chunks, 3);
  EXPECT_EQ(need.fresh_s, 0.5);
  EXPECT_EQ(need.idle, Seconds(2));
  EXPECT_EQ(need.rank, 7);
  EXPECT_EQ(need.age_s, 11);
}

}  // namespace
}  // namespace kvcake
