// Who gets the tokens of a step when many want them.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/engine_testing.h"
#include "store/slow_tiers_testing.h"
#include "store/throttled_tier.h"

namespace kvcake {
namespace {

// A restoration among new prompts: who is computed first, and whether the stored prompt is then
// loaded as far as a busy compute lane leaves it.
TEST(EngineScheduleTest, NewPromptsGoBeforeARestorationThatCanLoadInstead) {
  const auto known = Prompt(40 * kChunk, 1);
  auto tier = MakeTier();
  Completion plain;
  {
    World world(tier.get());
    plain = world.Answer(Ask(known));
  }
  ThrottledTierOptions link_options;
  link_options.rate_bytes_per_s = 5e3 * static_cast<double>(PageBytes()) / kChunk;  // tokens
  ThrottledTier link(std::move(tier), link_options);
  int computed[2], before[2] = {};
  for (const Schedule schedule : {Schedule::kFcfs, Schedule::kAdaptive}) {
    const Seconds per_token(4e-4);
    World world(&link, {.pages = 512, .per_token = per_token});
    world.MakeEngine({.slice_tokens = kSlice, .schedule = schedule});
    // Not by warming up: a pass that a busy machine holds up would make compute look useless.
    for (const int tokens : {16, 32, 64, 128}) world.cost.Add(0, tokens, per_token * tokens);
    std::vector<StepRecord> steps;
    world.engine->SetStepObserver([&](const StepRecord& step) { steps.push_back(step); });
    const SequenceId restored = world.engine->Submit(Ask(known)).value();
    std::vector<SequenceId> fresh;
    for (int i = 0; i < 20; ++i) {
      Request request = Ask(Prompt(2 * kChunk + 7, 100 + i));
      request.store = false;
      fresh.push_back(world.engine->Submit(std::move(request)).value());
    }
    while (world.engine->Step().value()) {
    }
    const Completion done = world.engine->Take(restored).value();
    EXPECT_EQ(done.tokens, plain.tokens);
    for (const SequenceId id : fresh) EXPECT_EQ(world.engine->Take(id)->tokens.size(), 12u);
    const int which = static_cast<int>(schedule);
    computed[which] = done.report.tokens_computed;
    // What the restoration got before half of the new prompts' tokens were computed.
    int left = 20 * (2 * kChunk + 7) / 2;
    for (size_t i = 0; i < steps.size() && left > 0; left -= steps[i++].fresh) {
      before[which] += steps[i].restored;
    }
  }
  constexpr int kAdaptive = static_cast<int>(Schedule::kAdaptive);
  constexpr int kFcfs = static_cast<int>(Schedule::kFcfs);
  EXPECT_LT(computed[kAdaptive], computed[kFcfs]);
  EXPECT_LT(before[kAdaptive], before[kFcfs] / 2);
}

// However many come after it, and though nothing can be loaded any more.
TEST(EngineScheduleTest, ARestorationIsNotStarvedByNewPrompts) {
  const auto tier = MakeTier<HungTier>();
  const auto known = Prompt(8 * kChunk + 1, 1);
  {
    World world(tier.get());
    world.Answer(Ask(known, Policy::kCompute));
  }
  World world(tier.get(), {.pages = 512, .per_token = Seconds(1e-4)});
  const std::shared_ptr<void> release(nullptr,
                                      [&](void*) { tier->Answer(); });  // before world ends
  world.MakeEngine({.slice_tokens = kSlice, .restore_wait_max = Seconds(0.05)});
  bool answered = false;
  Request request = Ask(known);
  request.on_token = [&](const TokenEvent&) { return answered = true; };
  ASSERT_TRUE(world.engine->Submit(std::move(request)));
  int fresh = 0;
  for (; !answered && fresh < 200; ++fresh) {  // always one that waits
    Request other = Ask(Prompt(kSlice, 100 + fresh));
    other.max_tokens = 1;
    other.store = false;
    ASSERT_TRUE(world.engine->Submit(std::move(other)));
    ASSERT_TRUE(world.engine->Step());
  }
  EXPECT_TRUE(answered);
  EXPECT_GT(fresh, 2) << "it has waited";
  while (world.engine->Step().value()) {
  }
}

TEST(EngineScheduleTest, StepsAreToldByWhatTheirTokensWereFor) {
  const auto tier = MakeTier();
  World world(tier.get());
  StepRecord all;
  world.engine->SetStepObserver([&](const StepRecord& step) {
    all.decoded += step.decoded;
    all.fresh += step.fresh;
    all.restored += step.restored;
    EXPECT_GT(step.took, Seconds(0));
    EXPECT_GE(step.began, all.began + all.took) << "after the one before";
    all.began = step.began;
    all.took = step.took;
  });
  Request request = Ask(Prompt(2 * kChunk + 5, 1));
  request.max_tokens = 4;
  world.Answer(request);
  EXPECT_EQ(all.fresh, 2 * kChunk + 5);
  EXPECT_EQ(all.restored, 0);
  EXPECT_EQ(all.decoded, 3) << "the first comes of the prompt";
  world.pool->DropCached();
  all = {};
  request.forced_split = 1;
  request.max_tokens = 1;
  EXPECT_EQ(world.Answer(request).report.loaded(), kChunk);
  EXPECT_EQ(all.fresh + all.restored, kChunk + 5);
  EXPECT_EQ(all.decoded, 0);
}

// A prompt shorter than a chunk comes in each step.
TEST(EngineScheduleTest, ShortPromptsDoNotHoldUpALongOne) {
  World world(nullptr, {.pages = 512});
  world.MakeEngine({.slice_tokens = kChunk});
  bool answered = false;
  Request request = Ask(Prompt(8 * kChunk, 1));
  request.on_token = [&](const TokenEvent&) {
    answered = true;
    return true;
  };
  ASSERT_TRUE(world.engine->Submit(std::move(request)));
  int steps = 0;
  for (; !answered && steps < 50; ++steps) {
    Request other = Ask(Prompt(kChunk / 2, 100 + steps));
    other.max_tokens = 1;
    ASSERT_TRUE(world.engine->Submit(std::move(other)));
    ASSERT_TRUE(world.engine->Step());
  }
  EXPECT_TRUE(answered);
  EXPECT_LE(steps, 12) << "a chunk in each";
  while (world.engine->Step().value()) {
  }
}

}  // namespace
}  // namespace kvcake
