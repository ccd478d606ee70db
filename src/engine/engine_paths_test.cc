// Chunks that another numeric path has made: they are used, what follows them is right to rounding
// only, and nothing of it is kept or labelled as our own.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/engine_testing.h"
#include "store/slow_tiers_testing.h"

namespace kvcake {
namespace {

constexpr NumericPath kOurs = NumericPath::kF32Fma, kOthers = NumericPath::kF32;

class EnginePathsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!PathAvailable(kOurs)) GTEST_SKIP() << "this machine has one numeric path only";
  }
  // Another path's chunks of the prompt go to the store.
  void StoreOthers(const std::vector<int32_t>& prompt) {
    World others(tier_.get(), {.path = kOthers});
    others.Answer(Ask(prompt));
  }
  // The path of the page of the chunk that begins with that token.
  static NumericPath PathOf(World& world, std::vector<int32_t> tokens, int chunk) {
    const auto keys = ChunkKeys(world.model->identity().Root(), tokens, kChunk);
    const auto page = world.pool->Lookup(keys[chunk]);
    EXPECT_TRUE(page) << "chunk " << chunk << " is in memory";
    return page ? world.pool->path(page->id()) : NumericPath::kUnknown;
  }
  static std::vector<int32_t> Whole(const std::vector<int32_t>& prompt, const Completion& answer) {
    std::vector<int32_t> tokens = prompt;
    tokens.insert(tokens.end(), answer.tokens.begin(), answer.tokens.end());
    return tokens;
  }

  std::unique_ptr<MemoryTier> tier_ = MakeTier();
};

TEST_F(EnginePathsTest, WhatFollowsThemIsNotKept) {
  const auto prompt = Prompt(8 * kChunk + 5, 1);
  StoreOthers({prompt.begin(), prompt.begin() + 4 * kChunk});
  const uint64_t stored = tier_->Stats().chunks;
  ASSERT_EQ(stored, 4u);
  World world(tier_.get(), {.path = kOurs});
  Request request = Ask(prompt, Policy::kLoad);
  request.max_tokens = 2 * kChunk;
  const Completion answer = world.Answer(request);
  EXPECT_EQ(answer.report.loaded(), 4 * kChunk);
  EXPECT_EQ(answer.report.chunks_mixed_path, 8);
  EXPECT_EQ(tier_->Stats().chunks, stored);
  EXPECT_EQ(world.engine->write_stats().written, 0u);
  const auto tokens = Whole(prompt, answer);
  EXPECT_EQ(PathOf(world, tokens, 3), kOthers);
  for (int chunk = 4; chunk < 10; ++chunk) {
    EXPECT_EQ(PathOf(world, tokens, chunk), NumericPath::kUnknown) << chunk;
  }
}

// Though it is offered to the store before the restoration has ended.
TEST_F(EnginePathsTest, WhatFollowsThemIsNotKeptWhereItIsClaimed) {
  const auto prompt = Prompt(8 * kChunk + 5, 5);
  const std::vector<int32_t> front(prompt.begin(), prompt.begin() + 4 * kChunk);
  const auto tier = MakeTier<GrantingTier>();
  World(tier.get(), {.path = kOthers}).Answer(Ask(front));
  World world(tier.get(), {.path = kOurs, .claims = {.tier = 0, .answer_max = kPatience}});
  world.Answer(Ask(front, Policy::kLoad));
  for (int i = 0; i < 8; ++i) world.cost.Add(i * kChunk, kChunk, kPatience);
  const Completion answer = world.Answer(Ask(prompt));
  EXPECT_EQ(answer.report.chunks_mixed_path, 8);
  EXPECT_EQ(tier->claims, 4);
  EXPECT_EQ(world.engine->write_stats().written, 0u);
}

// Other processes may wait for it.
TEST_F(EnginePathsTest, WhatIsClaimedAndComputedBeforeThemIsKept) {
  class Watched : public ModelDecorator {
   public:
    using ModelDecorator::ModelDecorator;
    Result<std::span<const float>> Forward(std::span<const Slice> batch) override {
      during();
      return inner_.Forward(batch);
    }
    std::function<void()> during;
  };
  const auto prompt = Prompt(8 * kChunk + 5, 6);
  const auto tier = MakeTier<Granting<HungTier>>();
  World(tier.get(), {.path = kOthers}).Answer(Ask(prompt));
  World world(tier.get(), {.path = kOurs, .claims = {.tier = 0, .answer_max = kPatience}});
  const auto keys = ChunkKeys(world.model->identity().Root(), prompt, kChunk);
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(tier->Evict(keys[i]));
  for (int i = 0; i < 8; ++i) world.cost.Add(i * kChunk, kChunk, kPatience);
  ASSERT_TRUE(world.restorer->TierCostFromJson(
      0, {{"version", 1},
          {"fixed_s", 0},
          {"bytes_per_s", static_cast<double>(PageBytes()) / (kPatience.count() / 2)},
          {"read_bytes", PageBytes()}}));
  Watched model(*world.model);
  model.during = [&] {
    tier->Serve();
    EXPECT_TRUE(testing_util::Eventually([&] { return world.pool->Contains(keys[7]); }));
  };
  world.MakeEngine(model, {.slice_tokens = kSlice});
  EXPECT_EQ(world.Answer(Ask(prompt)).report.chunks_mixed_path, 1);
  std::vector<bool> held(8);
  for (int i = 0; i < kSlice / kChunk; ++i) held[i] = true;
  held[7] = true;
  EXPECT_EQ(tier->Residency(keys), held);
  world.engine.reset();  // before the model that it borrows
}

// Restored from our own chunks at first, then from theirs.
TEST_F(EnginePathsTest, APreemptedSequenceForgetsItsLabel) {
  const auto first = Prompt(2 * kChunk, 2), second = Prompt(4 * kChunk + 5, 3);
  World world(tier_.get(), {.pages = kReserved + 10, .path = kOurs});
  Request oldest = Ask(first);
  oldest.max_tokens = 6 * kChunk;
  oldest.store = false;
  Request request = Ask(second, Policy::kLoad);
  request.max_tokens = 3 * kChunk;
  const SequenceId old = world.engine->Submit(oldest).value();
  const SequenceId id = world.engine->Submit(request).value();
  while (world.engine->preemptions() == 0) ASSERT_TRUE(world.engine->Step().value());
  world.engine->FlushStore();
  ASSERT_GT(tier_->Stats().chunks, 0u) << "it was restored, and is ours";
  world.pool->DropCached();
  const auto keys = ChunkKeys(world.model->identity().Root(), second, kChunk);
  for (const ChunkKey& key : keys) ASSERT_TRUE(tier_->Evict(key));
  StoreOthers(second);
  const uint64_t written = world.engine->write_stats().written;
  while (world.engine->Step().value()) {
  }
  world.engine->FlushStore();
  const Completion answer = world.engine->Take(id).value();
  EXPECT_EQ(answer.preemptions, 1);
  EXPECT_EQ(PathOf(world, Whole(second, answer), 6), NumericPath::kUnknown);
  EXPECT_EQ(world.engine->write_stats().written, written);
  EXPECT_EQ(world.engine->Take(old)->preemptions, 0);
}

// A prompt that is scored computes all of its chunks, finds that others are in memory already, and
// goes on with those.
TEST_F(EnginePathsTest, PagesThatWereThereBeforeTakeTheLabelAlong) {
  const auto prompt = Prompt(4 * kChunk, 4);
  StoreOthers(prompt);
  World world(tier_.get(), {.path = kOurs});
  const Completion mixed = world.Answer(Ask(prompt, Policy::kLoad));
  EXPECT_EQ(mixed.report.chunks_mixed_path, 4);
  Request request = Ask(prompt);
  request.prompt_logprobs = true;
  request.max_tokens = 2 * kChunk;
  const Completion scored = world.Answer(request);
  const auto tokens = Whole(prompt, scored);
  EXPECT_EQ(PathOf(world, tokens, 0), kOthers);
  EXPECT_EQ(PathOf(world, tokens, 4), NumericPath::kUnknown);
  EXPECT_EQ(world.engine->write_stats().written, 0u);
}

}  // namespace
}  // namespace kvcake
