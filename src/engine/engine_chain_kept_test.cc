// Prompts that several ranks prefill and of which something is kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <set>

#include "base/callback_thread.h"
#include "engine/engine_chain_testing.h"
#include "store/faulty_tier_testing.h"

namespace kvcake {
namespace {

// Is known to hold nothing until it is looked for, as a store elsewhere is.
class UnknownTier : public TierDecorator {
 public:
  using TierDecorator::TierDecorator;
  ~UnknownTier() override { Answer(); }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override {
    MutexLock lock(mutex_);
    std::vector<bool> held;
    for (const ChunkKey& key : keys) held.push_back(found_.contains(key));
    return held;
  }
  bool Look(LookRequest request) override {
    ++looks;
    if (hangs) {
      MutexLock lock(mutex_);
      unanswered_.push_back(std::move(request));
    } else {
      std::promise<void> answered;  // before anybody's patience is at its end
      thread_.Soon([&] { Find(request), answered.set_value(); });
      answered.get_future().wait();
    }
    return true;
  }
  ReadId Get(ReadRequest request) override {
    ForwardGet(++reads_, std::move(request));
    return reads_;
  }
  void Cancel(ReadId id) override { ForwardCancel(id); }
  // Answers what it was asked for while it hung.
  void Answer() {
    std::vector<LookRequest> requests;
    {
      MutexLock lock(mutex_);
      requests.swap(unanswered_);
    }
    for (const LookRequest& request : requests) Find(request);
  }
  std::atomic<bool> hangs = false;
  std::atomic<int> looks = 0;

 private:
  void Find(const LookRequest& request) {
    const std::vector<bool> held = inner().Residency(request.keys);
    {
      MutexLock lock(mutex_);
      for (size_t i = 0; i < held.size(); ++i) {
        if (held[i]) found_.insert(request.keys[i]);
      }
    }
    request.found(0, held);
  }

  Mutex mutex_;
  std::set<ChunkKey> found_ GUARDED_BY(mutex_);
  std::vector<LookRequest> unanswered_ GUARDED_BY(mutex_);
  std::atomic<ReadId> reads_ = 0;
  CallbackThread thread_;
};

using EngineChainKeptTest = EngineChainTest;

// What is kept of a prompt is restored by every rank; the chain computes the rest.
TEST_F(EngineChainKeptTest, AKeptPrefixShiftsTheOrigin) {
  const auto tier = MakeTier();
  const std::vector<int32_t> prompt = Prompt(15 * kChunk + 5, 3);
  const std::vector<int32_t> prefix(prompt.begin(), prompt.begin() + 5 * kChunk + 9);
  World alone(nullptr);
  const Completion want = alone.Answer(Ask(prompt));
  {
    World before(tier.get());
    before.Answer(Ask(prefix));
  }
  Start(2, tier.get());
  // Left to the lanes, a busy machine may compute all of it.
  EXPECT_EQ(world_->Answer(Ask(prefix, Policy::kLoad)).report.loaded(), 5 * kChunk);
  const Completion got = world_->Answer(Ask(prompt));
  ExpectSame(got, want);
  ASSERT_TRUE(got.chain);
  EXPECT_EQ(got.chain->job.origin, 5 * kChunk);
  EXPECT_EQ(got.report.tokens_reused, 5 * kChunk);
  // Now all of it is in memory.
  const Completion again = world_->Answer(Ask(prompt));
  ExpectSame(again, want);
  EXPECT_FALSE(again.chain);
  End();
}

// A new process knows nothing of a store elsewhere: it asks.
TEST_F(EngineChainKeptTest, WhatStoresAreNotKnownToHoldIsLookedFor) {
  auto tier = MakeTier();
  const std::vector<int32_t> prompt = Prompt(15 * kChunk + 5, 3);
  World alone(nullptr);
  const Completion want = alone.Answer(Ask(prompt));
  {
    World before(tier.get());
    before.Answer(Ask({prompt.begin(), prompt.begin() + 5 * kChunk + 9}));
  }
  UnknownTier unknown(std::move(tier));
  Start(2, &unknown);
  const Completion got = world_->Answer(Ask(prompt));
  ExpectSame(got, want);
  ASSERT_TRUE(got.chain);
  EXPECT_EQ(got.chain->job.origin, 5 * kChunk);
  EXPECT_EQ(unknown.looks, 1);
  End();
}

TEST_F(EngineChainKeptTest, AStoreThatHangsKeepsOnePromptInAWhileWaiting) {
  AdjustedClock clock;
  clock_ = &clock;
  UnknownTier unknown(MakeTier());
  Start(2, &unknown);
  unknown.hangs = true;
  const auto looks = [&](int seed) {
    const int before = unknown.looks;
    const Completion got = world_->engine->Answer(Ask(Prompt(350, seed))).value();
    EXPECT_TRUE(got.chain) << "it computes all of it";
    return unknown.looks - before;
  };
  EXPECT_EQ(looks(1), 1);
  EXPECT_EQ(looks(2), 0);
  clock.ahead_s += 10;
  EXPECT_EQ(looks(3), 1);
  clock.ahead_s += 10;
  unknown.hangs = false;
  unknown.Answer();
  EXPECT_EQ(looks(4), 1);
  EXPECT_EQ(looks(5), 1) << "it answers again";
  End();
}

TEST_F(EngineChainKeptTest, ShortPromptsAndThoseThatAreToBeComputedAskNoStoreFirst) {
  UnknownTier unknown(MakeTier());
  Start(2, &unknown);
  unknown.hangs = true;
  EXPECT_TRUE(world_->engine->Answer(Ask(Prompt(350, 1), Policy::kCompute)).value().chain);
  EXPECT_EQ(unknown.looks, 0);
  EXPECT_FALSE(world_->engine->Answer(Ask(Prompt(2 * kChunk + 1, 2))).value().chain);
  EXPECT_EQ(unknown.looks, 1) << "its restoration's, which does not wait";
  unknown.Answer();
  End();
}

// The leader has five chunks, and of these the others have two at least.
TEST_F(EngineChainKeptTest, WhatOnlyTheLeaderHasTheChainComputesToo) {
  const auto tier = MakeTier();
  const std::vector<int32_t> prompt = Prompt(15 * kChunk + 5, 3);
  World alone(nullptr);
  const Completion want = alone.Answer(Ask(prompt));
  {
    World before(tier.get());
    before.Answer(Ask({prompt.begin(), prompt.begin() + 5 * kChunk + 9}));
  }
  std::atomic<int> workers = 0, asked_for = 0;
  kept_ = [&](std::span<const ChunkKey> keys) {
    asked_for += static_cast<int>(keys.size());
    return 2 + workers++;
  };
  Start(3, tier.get());
  const Completion got = world_->Answer(Ask(prompt));
  ExpectSame(got, want);
  EXPECT_EQ(asked_for, 2 * 5);
  ASSERT_TRUE(got.chain);
  EXPECT_EQ(got.chain->job.origin, 2 * kChunk);
  EXPECT_THAT(planner_.asked,
              testing::ElementsAre(std::array{2 * kChunk, 13 * kChunk + 5, 5 * kChunk}));
  EXPECT_THAT(planner_.told,
              testing::ElementsAre(std::array{2 * kChunk, 13 * kChunk + 5, 3, 5 * kChunk}))
      << "once, though it was planned more often";
  EXPECT_TRUE(leader_->ok());
  End();
}

TEST_F(EngineChainKeptTest, TheLeaderComputesAloneWhatItAloneHasTheBeginningOfWhereThatPays) {
  const std::vector<int32_t> prompt = Prompt(15 * kChunk + 5, 3);
  kept_ = [](std::span<const ChunkKey>) { return 0; };
  planner_.pays = false;
  Start(3);
  world_->Answer(Ask({prompt.begin(), prompt.begin() + 5 * kChunk + 9}));
  planner_.told.clear();
  const Completion got = world_->Answer(Ask(prompt));
  EXPECT_FALSE(got.chain);
  EXPECT_GE(got.report.tokens_reused, 5 * kChunk);
  EXPECT_THAT(planner_.told, testing::ElementsAre(std::array{0, 15 * kChunk + 5, 1, 5 * kChunk}));
  EXPECT_TRUE(world_->Answer(Ask(Prompt(400, 4))).chain) << "nothing is kept of it";
  EXPECT_TRUE(leader_->ok());
}

// The first rank is left out for being slow, say: what it has not kept is nobody's loss.
TEST_F(EngineChainKeptTest, ARankWithoutAPartIsNotAskedWhatItHasKept) {
  const std::vector<int32_t> prompt = Prompt(12 * kChunk + 5, 3);
  std::atomic<int> asked = 0;
  kept_ = [&](std::span<const ChunkKey>) { return ++asked, 3; };
  planner_.ranks_after = [](int) { return 2; };
  Start(3);
  world_->Answer(Ask({prompt.begin(), prompt.begin() + 5 * kChunk + 9}));
  const Completion got = world_->Answer(Ask(prompt));
  ASSERT_TRUE(got.chain);
  EXPECT_EQ(got.chain->job.origin, 3 * kChunk);
  EXPECT_EQ(asked, 1);
}

TEST_F(EngineChainKeptTest, ARankThatHasAPartOnlyAsTheChainBeginsSoonerIsAskedToo) {
  const std::vector<int32_t> prompt = Prompt(15 * kChunk + 5, 3);
  Mutex mutex;
  std::vector<size_t> asked_for;
  kept_ = [&](std::span<const ChunkKey> keys) {
    MutexLock lock(mutex);
    asked_for.push_back(keys.size());
    return asked_for.size() == 1 ? 3 : 1;
  };
  planner_.ranks_after = [](int origin) { return origin == 5 * kChunk ? 2 : 3; };
  Start(3);
  world_->Answer(Ask({prompt.begin(), prompt.begin() + 5 * kChunk + 9}));
  const Completion got = world_->Answer(Ask(prompt));
  ASSERT_TRUE(got.chain);
  EXPECT_EQ(got.chain->job.origin, kChunk);
  EXPECT_EQ(got.chain->ranks.size(), 3u);
  EXPECT_THAT(asked_for, testing::ElementsAre(5, 3, 3));
}

TEST_F(EngineChainKeptTest, ARankThatHasWhatCannotBeIsLost) {
  for (const int nonsense : {-1, 1 << 30}) {
    const std::vector<int32_t> prompt = Prompt(15 * kChunk + 5, 3);
    kept_ = [nonsense](std::span<const ChunkKey>) { return nonsense; };
    Start(3);
    world_->Answer(Ask({prompt.begin(), prompt.begin() + 5 * kChunk + 9}));
    EXPECT_FALSE(world_->Answer(Ask(prompt)).chain);
    EXPECT_FALSE(leader_->ok());
    End();
  }
}

// They are right to rounding only, and the leader, whose own chunks are of its path, cannot tell.
TEST_F(EngineChainKeptTest, WhatRanksComputeAfterAnotherPathsChunksIsNotKept) {
  const std::vector<int32_t> prompt = Prompt(15 * kChunk + 5, 3);
  const std::vector<int32_t> kept(prompt.begin(), prompt.begin() + 5 * kChunk + 9);
  for (const NumericPath path : {NumericPath::kUnknown, NumericPath::kF32}) {
    const auto leaders = MakeTier(), theirs = MakeTier();
    NumericPath ours;
    {
      World leader(leaders.get()), others(theirs.get(), {.path = path});
      leader.Answer(Ask(kept));
      others.Answer(Ask(kept));
      ours = leader.model->numeric_path();
      if (path == ours) return;  // this machine has one numeric path only
    }
    workers_tier_ = theirs.get();
    Start(2, leaders.get());
    const Completion got = world_->Answer(Ask(prompt));
    ASSERT_TRUE(got.chain);
    EXPECT_EQ(got.chain->job.origin, 5 * kChunk);
    EXPECT_EQ(leaders->Stats().chunks, path == NumericPath::kUnknown ? 15u : 5u);
    End();
  }
}

// The leader's speed is learnt from what it says that it took.
TEST_F(EngineChainKeptTest, WhatOthersTakeToRestoreIsNotTheLeadersComputing) {
  AdjustedClock clock;
  const auto tier = MakeTier();
  const std::vector<int32_t> prompt = Prompt(15 * kChunk + 5, 3);
  {
    World before(tier.get());
    before.Answer(Ask({prompt.begin(), prompt.begin() + 5 * kChunk + 9}));
  }
  clock_ = &clock;
  at_restoring_ = [&] { clock.ahead_s += 10'000; };
  Start(2, tier.get());
  const Completion got = world_->Answer(Ask(prompt));
  ASSERT_TRUE(got.chain);
  EXPECT_EQ(clock.ahead_s, 10'000);
  EXPECT_LT(got.chain->ranks[1].compute_s, 10'000);
  End();
}

// The kept chunk cannot be read: it is computed, and nothing of what the chain is to compute.
TEST_F(EngineChainKeptTest, AKeptPrefixThatCannotBeReadIsComputed) {
  auto tier = MakeTier();
  const std::vector<int32_t> prompt = Prompt(100, 3);
  World alone(nullptr);
  const Completion want = alone.Answer(Ask(prompt));
  {
    World before(tier.get());
    before.Answer(Ask({prompt.begin(), prompt.begin() + kChunk + 1}));
  }
  FaultyTier broken(std::move(tier), {.read_error = 1});
  planner_.least = 2 * kChunk;
  Start(2, &broken);
  const Completion got = world_->Answer(Ask(prompt));
  ExpectSame(got, want);
  ASSERT_TRUE(got.chain);
  EXPECT_EQ(got.chain->job.origin, kChunk);
  End();
}

// As many run as without ranks.
TEST_F(EngineChainKeptTest, PromptsOnWhatIsKeptShareItsPages) {
  constexpr int kDocument = 10, kAsked = 3;
  const auto document = Prompt(kDocument * kChunk, 3);
  pages_ = static_cast<int>(EngineOptions{}.read_reserve_pages) + kDocument + 3 * kAsked;
  Start(3);
  Engine& engine = *world_->engine;
  world_->Answer(Ask(document));
  std::vector<SequenceId> ids;
  for (int i = 0; i < kAsked; ++i) {
    Request request = Ask(document);
    request.prompt.push_back(i);
    request.max_tokens = 2 * kChunk;
    ids.push_back(engine.Submit(std::move(request)).value());
  }
  size_t most = 0;
  while (engine.Step().value()) most = std::max(most, engine.running());
  EXPECT_EQ(most, 3u);
  for (const SequenceId id : ids) {
    EXPECT_EQ(engine.Take(id)->report.tokens_reused, kDocument * kChunk);
  }
}

// What another's pages hold already ranks send into pages of its own, where there are some.
TEST_F(EngineChainKeptTest, APromptIsDividedWhereThereArePagesOfItsOwn) {
  const auto prompt = Prompt(15 * kChunk + 5, 3);
  Request shorter = Ask({prompt.begin(), prompt.begin() + 5 * kChunk + 5});
  World alone(nullptr);
  const Completion want = alone.Answer(Ask(prompt));
  kept_ = [](std::span<const ChunkKey>) { return 0; };
  for (const int spare : {4, 5}) {
    SCOPED_TRACE(spare);
    pages_ = static_cast<int>(EngineOptions{}.read_reserve_pages) + 6 + 11 + spare;
    Start(3);
    Engine& engine = *world_->engine;
    const SequenceId first = engine.Submit(shorter).value();
    for (int step = 0; step < 3; ++step) ASSERT_TRUE(engine.Step().value());
    Request request = Ask(prompt);
    request.logprobs = true;
    const SequenceId id = engine.Submit(std::move(request)).value();
    ASSERT_TRUE(engine.Step().value());
    EXPECT_EQ(engine.running(), 2u);
    while (engine.Step().value()) {
    }
    const Completion got = *engine.Take(id);
    ExpectSame(got, want);
    EXPECT_EQ(got.chain.has_value(), spare == 5);
    EXPECT_EQ(got.report.tokens_reused, spare == 5 ? 0 : 5 * kChunk);
    EXPECT_TRUE(engine.Take(first));
    EXPECT_EQ(engine.preemptions(), 0u);
    End();
  }
}

// One process loads what several would compute again.
TEST_F(EngineChainKeptTest, WhatIsKeptBehindAHoleIsLoaded) {
  const auto tier = MakeTier();
  const std::vector<int32_t> prompt = Prompt(15 * kChunk, 3);
  Completion want;
  ChunkKey first;
  {
    World before(tier.get());
    want = before.Answer(Ask(prompt));
    first = ChunkKeys(before.model->identity().Root(), prompt, kChunk)[0];
  }
  ASSERT_TRUE(tier->Evict(first));
  Start(2, tier.get());
  const Completion got = world_->Answer(Ask(prompt, Policy::kCake));
  ExpectSame(got, want);
  EXPECT_FALSE(got.chain);
  End();
}

}  // namespace
}  // namespace kvcake
