// Prompts that several ranks prefill, through the engine.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/callback_thread.h"
#include "comm/memory_comm.h"
#include "engine/engine_testing.h"
#include "store/faulty_tier_testing.h"

namespace kvcake {
namespace {

// Divides what is longer than `least` tokens evenly.
class EvenPlanner : public ChainPlanner {
 public:
  std::optional<Partition> Plan(int, int tokens, int ranks) override {
    if (tokens <= least) return std::nullopt;
    return EvenPartition(tokens, ranks);
  }
  void Learn(const RankJob&, std::span<const RankReport> ranks) override {
    learnt.push_back(ranks.size());
  }
  bool learns_links() const override { return learns; }
  void LearnLinks(const Survey& survey) override {
    EXPECT_GT(survey.bytes_per_s, 0);
    ++surveys;
  }
  bool learns = true;
  int surveys = 0;
  int least = 6 * kChunk;
  std::vector<size_t> learnt;
};

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

struct AdjustedClock : Clock {
  TimePoint Now() const override { return Real().Now() + Seconds(ahead_s); }
  std::atomic<int> ahead_s = 0;
};

// Ranks as threads, each with a world of its own; the last one's engine is the test's.
class EngineChainTest : public testing::Test {
 protected:
  void Start(int ranks, Tier* tier = nullptr, StoreWrites writes = StoreWrites::kAlways) {
    comms_ = NewMemoryComms(ranks);
    results_.resize(ranks - 1);
    for (int rank = 0; rank + 1 < ranks; ++rank) {
      workers_.emplace_back([this, rank] {
        World world(nullptr);
        const auto restore = [&](const RankJob& job) {
          if (at_restoring_) at_restoring_();
          const auto prefix = std::span(job.tokens).first(job.origin + 1);
          Request request{.prompt = {prefix.begin(), prefix.end()}, .max_tokens = 1};
          request.salt = job.salt;
          return world.engine->Answer(std::move(request)).map([](auto) {});
        };
        results_[rank] = WorkForChain(*comms_[rank], {.model = *world.model,
                                                      .pool = *world.pool,
                                                      .restore_prefix = restore,
                                                      .options = options_});
      });
    }
    world_.emplace(tier, WorldOptions{.writes = writes, .clock = clock_});
    leader_.emplace(*comms_.back(), *world_->pool, options_);
    world_->engine->SetChain(&*leader_, &planner_);
  }
  void TearDown() override { End(); }
  // Before a tier of the test's goes.
  void End() {
    leader_.reset();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    world_.reset();
  }

  static inline const ChainOptions kOptions{
      .timeout = Seconds(10), .restore_timeout = Seconds(10), .authenticated = true};
  ChainOptions options_ = kOptions;
  std::function<void()> at_restoring_ = {};  // of each worker
  const Clock* clock_ = &Clock::Real();      // the leader's
  EvenPlanner planner_;
  std::vector<std::unique_ptr<Comm>> comms_;
  std::vector<Status> results_;
  std::vector<std::thread> workers_;
  std::optional<World> world_;
  std::optional<ChainLeader> leader_;
};

TEST_F(EngineChainTest, LongPromptsAreDividedAndAnsweredAlike) {
  Start(3);
  World alone(nullptr);
  for (const int tokens : {40, 450, 13 * kChunk, 401, 460}) {
    SCOPED_TRACE(tokens);
    const std::vector<int32_t> prompt = Prompt(tokens, tokens);
    Request request = Ask(prompt);
    request.salt = tokens == 401 ? "a tenant" : "";
    Request same = request;
    const Completion divided = world_->Answer(std::move(request));
    ExpectSame(divided, alone.Answer(std::move(same)));
    EXPECT_EQ(divided.chain.has_value(), tokens > 6 * kChunk);
    if (divided.chain) {
      EXPECT_EQ(divided.chain->ranks.size(), 3u);
    }
  }
  EXPECT_EQ(planner_.learnt, std::vector<size_t>(4, 3));
}

TEST_F(EngineChainTest, AChunkThatAChainComputesIsUsedOnce) {
  const auto tier = MakeTier();
  Start(3, tier.get(), StoreWrites::kSecondUse);
  const Completion divided = world_->Answer(Ask(Prompt(15 * kChunk + 5, 3)));
  ASSERT_TRUE(divided.chain);
  EXPECT_EQ(world_->engine->write_stats().written, 0u);
  EXPECT_EQ(world_->engine->write_stats().not_admitted, 15u);
  End();
}

// Ranks that anybody may be: their KV cache is in this answer, and in no other one.
TEST_F(EngineChainTest, WhatUnprovenRanksHaveSentIsKeptNowhere) {
  const auto tier = MakeTier();
  const std::vector<int32_t> prompt = Prompt(15 * kChunk + 5, 3);
  const auto ask = [&] {
    Request request = Ask(prompt);
    request.max_tokens = 2 * kChunk;  // chunks that follow what they have sent
    return request;
  };
  World alone(nullptr);
  const Completion want = alone.Answer(ask());
  options_.authenticated = false;
  Start(3, tier.get());
  for (int round = 0; round < 2; ++round) {
    const Completion got = world_->Answer(ask());
    ExpectSame(got, want);
    EXPECT_TRUE(got.chain) << "nothing of it is known";
    EXPECT_EQ(got.report.loaded() + got.report.tokens_reused, 0);
  }
  const auto keys = ChunkKeys(world_->model->identity().Root(), prompt, kChunk);
  EXPECT_FALSE(world_->pool->Lookup(keys[0]));
  EXPECT_FALSE(world_->pool->Lookup(keys.back()));
  EXPECT_EQ(world_->engine->write_stats().written, 0u);
  End();
}

// What is kept of a prompt is restored by every rank; the chain computes the rest.
TEST_F(EngineChainTest, AKeptPrefixShiftsTheOrigin) {
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
  const Completion got = world_->Answer(Ask(prompt));
  ExpectSame(got, want);
  ASSERT_TRUE(got.chain);
  EXPECT_EQ(got.chain->job.origin, 5 * kChunk);
  EXPECT_GT(got.report.loaded() + got.report.tokens_reused, 0);
  // Now all of it is in memory.
  const Completion again = world_->Answer(Ask(prompt));
  ExpectSame(again, want);
  EXPECT_FALSE(again.chain);
  End();
}

// Of a store elsewhere a new process knows nothing: it is asked.
TEST_F(EngineChainTest, WhatStoresAreNotKnownToHoldIsLookedFor) {
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

TEST_F(EngineChainTest, AStoreThatHangsKeepsOnePromptInAWhileWaiting) {
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

TEST_F(EngineChainTest, ShortPromptsAndThoseThatAreToBeComputedAskNoStoreFirst) {
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

// The leader's speed is learnt from what it says that it took.
TEST_F(EngineChainTest, WhatOthersTakeToRestoreIsNotTheLeadersComputing) {
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
TEST_F(EngineChainTest, AKeptPrefixThatCannotBeReadIsComputed) {
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

// One process loads what several would compute again.
TEST_F(EngineChainTest, WhatIsKeptBehindAHoleIsLoaded) {
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

// What links were when ranks met is not believed for ever.
TEST_F(EngineChainTest, LinksAreMeasuredAgainAfterAWhile) {
  AdjustedClock clock;
  clock_ = &clock;
  Start(3);
  const auto surveys = [&](int tokens) {
    const int before = planner_.surveys;
    EXPECT_TRUE(world_->engine->Answer(Ask(Prompt(tokens, tokens))));
    return planner_.surveys - before;
  };
  EXPECT_EQ(surveys(400), 0) << "they have just met";
  clock.ahead_s += 100;
  EXPECT_EQ(surveys(kChunk), 0) << "too short to be divided";
  EXPECT_EQ(surveys(401), 1);
  EXPECT_EQ(surveys(402), 0);
  clock.ahead_s += 100;
  planner_.least = 1000;
  EXPECT_EQ(surveys(403), 1) << "also when none is divided for the links' sake";
  clock.ahead_s += 100;
  planner_.learns = false;
  EXPECT_EQ(surveys(404), 0);
  EXPECT_TRUE(leader_->ok());
}

TEST_F(EngineChainTest, ARankThatIsLostWhenLinksAreMeasuredCostsNoAnswer) {
  AdjustedClock clock;
  clock_ = &clock;
  Start(3);
  World alone(nullptr);
  const std::vector<int32_t> prompt = Prompt(400, 1);
  const auto waiting = world_->engine->Submit(Ask(Prompt(400, 2))).value();
  const auto admits = world_->engine->Submit(Ask(prompt)).value();
  clock.ahead_s += 100;
  comms_[1]->Close({ErrorCode::kIo, "the plug was pulled"});
  while (world_->engine->Step().value()) {
  }
  EXPECT_FALSE(world_->engine->Take(waiting).value().chain);
  EXPECT_EQ(world_->engine->Take(admits).value().tokens, alone.Answer(Ask(prompt)).tokens);
  EXPECT_EQ(planner_.surveys, 0);
  EXPECT_FALSE(leader_->ok());
}

TEST_F(EngineChainTest, ALostRankCostsTheChainAndNoAnswer) {
  Start(3);
  World alone(nullptr);
  const std::vector<int32_t> prompt = Prompt(450, 1);
  const Completion want = alone.Answer(Ask(prompt));
  Request first = Ask(Prompt(300, 2));
  EXPECT_TRUE(world_->Answer(std::move(first)).chain);
  comms_[1]->Close({ErrorCode::kIo, "the plug was pulled"});
  for (int i = 0; i < 2; ++i) {
    const Completion got = world_->Answer(Ask(prompt));
    ExpectSame(got, want);
    EXPECT_FALSE(got.chain);
  }
  EXPECT_FALSE(leader_->ok());
}

// Not even where this process' model takes more at once: the other ranks' may not.
TEST_F(EngineChainTest, NoRankComputesMoreOfAPromptThanEachMay) {
  options_.tokens_max = 150;
  Start(2);
  World alone(nullptr);
  ASSERT_GT(world_->model->max_batch_tokens(), 360 / 2);
  for (const int tokens : {360, 290}) {
    SCOPED_TRACE(tokens);
    const std::vector<int32_t> prompt = Prompt(tokens, tokens);
    const Completion got = world_->Answer(Ask(prompt));
    ExpectSame(got, alone.Answer(Ask(prompt)));
    EXPECT_EQ(got.chain.has_value(), tokens / 2 <= options_.tokens_max);
  }
  EXPECT_TRUE(leader_->ok());
}

// Decoding sequences and other prompts go on after a chain's step.
TEST_F(EngineChainTest, WhatAChainThatIsTakenAwayWasToPrefillIsComputedAlone) {
  Start(3);
  Engine& engine = *world_->engine;
  World alone(nullptr);
  Request first = Ask(Prompt(450, 1)), second = Ask(Prompt(430, 2));
  first.logprobs = second.logprobs = true;
  const auto a = engine.Submit(first), b = engine.Submit(second);
  ASSERT_TRUE(a && b);
  while (planner_.learnt.empty()) {  // plans both, prefills one
    const auto stepped = engine.Step();
    ASSERT_TRUE(stepped && *stepped);
  }
  engine.SetChain(nullptr, nullptr);
  leader_.reset();
  for (bool more = true; more;) {
    const auto stepped = engine.Step();
    ASSERT_TRUE(stepped);
    more = *stepped;
  }
  const auto got_a = engine.Take(*a), got_b = engine.Take(*b);
  ASSERT_TRUE(got_a && got_b);
  ExpectSame(*got_a, alone.Answer(first));
  ExpectSame(*got_b, alone.Answer(second));
  EXPECT_TRUE(got_a->chain);
  EXPECT_FALSE(got_b->chain);
}

TEST_F(EngineChainTest, SharesTheEngineWithOthers) {
  Start(2);
  World alone(nullptr);
  std::vector<SequenceId> ids;
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 6; ++i) {
    prompts.push_back(Prompt(i % 2 == 0 ? 60 : 350, 50 + i));
    ids.push_back(world_->engine->Submit(Ask(prompts.back())).value());
  }
  while (world_->engine->Step().value()) {
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const Completion got = world_->engine->Take(ids[i]).value();
    EXPECT_EQ(got.tokens, alone.Answer(Ask(prompts[i])).tokens);
    EXPECT_EQ(got.chain.has_value(), i % 2 == 1);
  }
}

}  // namespace
}  // namespace kvcake
