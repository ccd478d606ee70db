// Prompts that several ranks prefill, through the engine.
#include <gtest/gtest.h>

#include "engine/engine_chain_testing.h"

namespace kvcake {
namespace {

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
      for (const RankReport& rank : divided.chain->ranks) {
        EXPECT_GT(rank.compute_s, 0);
        EXPECT_GT(rank.wait_s, 0);
        EXPECT_GT(rank.peak_rss_bytes, 0u);
      }
    }
  }
  EXPECT_EQ(planner_.learnt, std::vector<size_t>(4, 3));
}

// Speeds are learnt from what is left.
TEST_F(EngineChainTest, WhatTheLeaderWaitsIsNoPartOfWhatItComputes) {
  workers_per_token_ = Seconds(1e-3);
  Start(2);
  const TimePoint began = Clock::Real().Now();
  const Completion done = world_->Answer(Ask(Prompt(380, 1)));
  const Seconds took = Clock::Real().Now() - began;
  ASSERT_TRUE(done.chain);
  const RankReport& leader = done.chain->ranks.back();
  EXPECT_GT(leader.wait_s, 0);
  EXPECT_LE(leader.compute_s + leader.wait_s, took.count());
}

TEST_F(EngineChainTest, EachLayerOfAChainIsToldOf) {
  Start(3);
  int layers = 0;
  world_->engine->SetLayerObserver([&] { ++layers; });
  world_->Answer(Ask(Prompt(40, 1)));
  EXPECT_EQ(layers, 0) << "it is computed alone";
  EXPECT_TRUE(world_->Answer(Ask(Prompt(450, 2))).chain);
  EXPECT_EQ(layers, world_->model->layout().layers);
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

// They would each be prefilled by the chain, one after the other.
TEST_F(EngineChainTest, PromptsThatShareTheirBeginningAreDividedOnce) {
  Start(3);
  World alone(nullptr);
  const std::vector<int32_t> prompt = Prompt(15 * kChunk + 5, 3);
  std::vector<int32_t> longer = prompt, other = Prompt(15 * kChunk + 5, 4);
  const auto tail = Prompt(7 * kChunk, 5);
  longer.insert(longer.end(), tail.begin(), tail.end());
  std::vector<SequenceId> ids;
  for (const auto& asked : {prompt, prompt, prompt, longer, other}) {
    Request request = Ask(asked);
    request.logprobs = true;
    ids.push_back(world_->engine->Submit(std::move(request)).value());
  }
  while (*world_->engine->Step()) {
  }
  std::vector<Completion> done;
  for (const SequenceId id : ids) done.push_back(*world_->engine->Take(id));
  ASSERT_TRUE(done[0].chain);
  EXPECT_FALSE(done[1].chain || done[2].chain) << "they came after it";
  EXPECT_EQ(done[2].report.tokens_reused, 15 * kChunk);
  ASSERT_TRUE(done[3].chain) << "of its tail";
  EXPECT_EQ(done[3].chain->job.origin, 15 * kChunk);
  ASSERT_TRUE(done[4].chain);
  EXPECT_EQ(done[4].chain->job.origin, 0);
  const Completion want = alone.Answer(Ask(prompt));
  for (int i = 0; i < 3; ++i) ExpectSame(done[i], want);
  ExpectSame(done[3], alone.Answer(Ask(longer)));
}

// A scored prompt's logits are all wanted, and a split that is asked for is one process's.
TEST_F(EngineChainTest, PromptsThatAreScoredOrSplitAsIsAskedForAreNotDivided) {
  Start(3);
  World alone(nullptr);
  for (const bool scored : {false, true}) {
    Request request = Ask(Prompt(400, scored));
    request.prompt_logprobs = scored;
    if (!scored) request.forced_split = 3;
    const Completion done = world_->Answer(request);
    EXPECT_FALSE(done.chain) << scored;
    ExpectSame(done, alone.Answer(request));
  }
}

TEST_F(EngineChainTest, NobodyWaitsForTheAnswerOfAPromptThatIsDivided) {
  Start(3);
  Engine& engine = *world_->engine;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(engine.Submit(Ask(Prompt(15 * kChunk + 5, 3))));
  while (planner_.learnt.empty()) ASSERT_TRUE(engine.Step().value());
  EXPECT_EQ(engine.running(), 1u);
  ASSERT_TRUE(engine.Step().value());
  EXPECT_EQ(engine.running(), 2u) << "the first one's prompt is there";
  while (*engine.Step()) {
  }
}

// It would find nothing, and when it is answered would tell what another has asked.
TEST_F(EngineChainTest, NobodyWaitsForAChainOfAnotherSalt) {
  Start(3);
  Request one = Ask(Prompt(15 * kChunk + 5, 3)), other = one;
  one.salt = "one tenant";
  other.salt = "another";
  for (const Request& request : {one, other}) ASSERT_TRUE(world_->engine->Submit(request));
  ASSERT_TRUE(world_->engine->Step());
  EXPECT_EQ(world_->engine->running(), 2u);
  while (*world_->engine->Step()) {
  }
}

TEST_F(EngineChainTest, WherePromptsWouldFindNothingAllButOneAreComputedAlone) {
  options_.authenticated = false;
  Start(3);
  World alone(nullptr);
  const std::vector<int32_t> prompt = Prompt(15 * kChunk + 5, 3);
  std::vector<SequenceId> ids;
  for (int i = 0; i < 3; ++i) {
    Request request = Ask(prompt);
    request.logprobs = true;
    ids.push_back(world_->engine->Submit(std::move(request)).value());
  }
  while (*world_->engine->Step()) {
  }
  const Completion want = alone.Answer(Ask(prompt));
  for (size_t i = 0; i < ids.size(); ++i) {
    const Completion done = *world_->engine->Take(ids[i]);
    EXPECT_EQ(done.chain.has_value(), i == 0);
    ExpectSame(done, want);
  }
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
    EXPECT_EQ(got.report.bound_s > 0, i > 0) << "of the first nothing was planned that came true";
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

TEST_F(EngineChainTest, NorMoreThanThisProcessModelTakes) {
  options_.tokens_max = 1000;
  Start(2);
  ASSERT_LT(world_->model->max_batch_tokens(), 430 / 2);
  EXPECT_FALSE(world_->Answer(Ask(Prompt(430, 1))).chain);
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

TEST_F(EngineChainTest, AChainThatIsTakenAwayDividesNothingMore) {
  Start(2);
  EXPECT_TRUE(world_->Answer(Ask(Prompt(350, 1))).chain);
  world_->engine->SetChain(nullptr, nullptr);
  EXPECT_FALSE(world_->Answer(Ask(Prompt(350, 2))).chain);
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
