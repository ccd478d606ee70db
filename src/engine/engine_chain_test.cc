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
