// What one engine tells other processes that it computes, for them to wait for.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/engine_testing.h"
#include "store/slow_tiers_testing.h"

namespace kvcake {
namespace {

// Other processes would wait for it in vain.
TEST(EngineClaimsTest, NothingIsClaimedThatIsNotToBeKept) {
  class Asked : public MemoryTier {
   public:
    using MemoryTier::MemoryTier;
    bool Claim(ClaimRequest request) override {
      claims += request.keys.size();
      return false;
    }
    size_t claims = 0;
  };
  const auto tier = MakeTier<Asked>();
  World world(tier.get(), {.claims = {.tier = 0, .prompt_min = Seconds(0)}});
  for (int i = 0; i < 8; ++i) world.cost.Add(i * kChunk, kChunk, Seconds(1e-3));
  Request request = Ask(Prompt(4 * kChunk + 5, 1));
  request.store = false;
  world.Answer(request);
  EXPECT_EQ(tier->claims, 0u);
  world.Answer(Ask(Prompt(4 * kChunk + 5, 2)));
  EXPECT_EQ(tier->claims, 4u);
}

// Other processes wait for it, and not for the whole prompt.
TEST(EngineClaimsTest, WhatIsClaimedIsWrittenWhenItIsComputed) {
  const auto tier = MakeTier<GrantingTier>();
  World world(tier.get(), {.claims = {.tier = 0, .answer_max = kPatience}});
  for (int i = 0; i < 8; ++i) world.cost.Add(i * kChunk, kChunk, kPatience);
  const auto prompt = Prompt(12 * kChunk + 5, 1);
  const SequenceId id = world.engine->Submit(Ask(prompt)).value();
  do {
    ASSERT_TRUE(world.engine->Step().value());
    ASSERT_TRUE(world.engine->Progress(id)) << "its last slice is yet to come";
  } while (world.engine->Progress(id)->computed < 4 * kChunk);
  EXPECT_TRUE(world.engine->FlushStore());
  const auto keys = ChunkKeys(world.model->identity().Root(), prompt, kChunk);
  EXPECT_EQ(tier->Residency(std::span(keys).first(4)), std::vector<bool>(4, true));
  world.engine->Cancel(id);
}

// A prompt's last slice as well, which may be all of it.
TEST(EngineClaimsTest, WhatIsClaimedIsWrittenBeforeAllThatNobodyWaitsFor) {
  class InOrder : public Granting<GatedTier> {
   public:
    using Granting<GatedTier>::Granting;
    int max_writes_in_flight() const override { return 1; }
    Status Put(const ChunkWrite& chunk) override {
      MutexLock lock(gate);
      written.push_back(chunk.key);
      return MemoryTier::Put(chunk);
    }
    std::vector<ChunkKey> written GUARDED_BY(gate);
  };
  const auto tier = MakeTier<InOrder>();
  World world(tier.get(), {.claims = {.tier = 0, .answer_max = kPatience}});
  MutexLock closed(tier->gate);
  ASSERT_TRUE(world.engine->Answer(Ask(Prompt(6 * kChunk, 1), Policy::kCompute)));
  for (int i = 0; i < 8; ++i) world.cost.Add(i * kChunk, kChunk, kPatience);
  const auto prompt = Prompt(3 * kChunk + 5, 2);
  ASSERT_TRUE(world.engine->Answer(Ask(prompt)));
  closed.Unlock();
  world.engine->FlushStore();
  EXPECT_EQ(tier->claims, 3);
  MutexLock lock(tier->gate);
  ASSERT_EQ(tier->written.size(), 6u + 3u);
  // One may have been under way, or about to be.
  const auto keys = ChunkKeys(world.model->identity().Root(), prompt, kChunk);
  const auto first = std::ranges::find(tier->written, keys[0]);
  EXPECT_LE(first - tier->written.begin(), 1);
  EXPECT_TRUE(std::equal(keys.begin(), keys.end(), first));
}

TEST(EngineClaimsTest, WhatIsClaimedIsUsedOnceNevertheless) {
  const auto tier = MakeTier<GrantingTier>();
  World world(tier.get(),
              {.writes = StoreWrites::kSecondUse, .claims = {.tier = 0, .answer_max = kPatience}});
  for (int i = 0; i < 8; ++i) world.cost.Add(i * kChunk, kChunk, kPatience);
  world.Answer(Ask(Prompt(12 * kChunk + 5, 1)));
  EXPECT_GT(tier->claims, 0);
  EXPECT_EQ(world.engine->write_stats().written, 0u);
  EXPECT_EQ(world.engine->write_stats().not_admitted, 12u);
}

}  // namespace
}  // namespace kvcake
