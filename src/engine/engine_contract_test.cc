// What an engine promises whatever its model runs on.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "engine/engine_testing.h"
#include "ops/paths_testing.h"
#include "store/faulty_tier_testing.h"
#include "store/throttled_tier.h"

namespace kvcake {
namespace {

class EngineContractTest : public PathTest {
 protected:
  WorldOptions On(int pages = WorldOptions().pages) const {
    return {.pages = pages, .path = GetParam()};
  }
  std::unique_ptr<MemoryTier> MakeTier() const { return kvcake::MakeTier(ModelDir(), GetParam()); }
  static void ExpectSame(const Completion& a, const Completion& b) {
    kvcake::ExpectSame(a, b, GetParam());
  }
};
KVCAKE_BOTH_DEVICES(EngineContractTest);

TEST_P(EngineContractTest, EveryPolicyGivesTheSameBits) {
  auto tier = MakeTier();
  for (int tokens : {1, kChunk - 1, kChunk, kChunk + 1, 4 * kChunk, 700}) {
    SCOPED_TRACE(tokens);
    const auto prompt = Prompt(tokens, tokens);
    Completion plain;
    {
      World world(nullptr, On());
      plain = world.Answer(Ask(prompt));
      EXPECT_EQ(plain.report.tokens_computed, tokens);
    }
    for (Policy policy : {Policy::kCompute, Policy::kLoad, Policy::kCake}) {
      SCOPED_TRACE(PolicyName(policy));
      World world(tier.get(), On());
      const Completion done = world.Answer(Ask(prompt, policy));
      ExpectSame(done, plain);
      const int full = tokens / kChunk * kChunk;
      if (policy == Policy::kLoad && full > 0) {
        EXPECT_EQ(done.report.tokens_loaded.at("memory"), full);
      }
    }
  }
}

TEST_P(EngineContractTest, ManySequencesInOneBatchAnswerAsEachAlone) {
  auto tier = MakeTier();
  std::vector<Request> requests;
  std::vector<Completion> alone;
  std::mt19937 rng(11);
  const auto document = Prompt(300, 1);
  for (int i = 0; i < 12; ++i) {
    auto prompt = Prompt(1 + rng() % 200, 100 + i);
    if (i % 3 == 0) prompt.insert(prompt.begin(), document.begin(), document.end());
    Request request = Ask(prompt, Policy(rng() % 3));
    request.max_tokens = 1 + rng() % 40;
    request.logprobs = true;
    // A draw that falls between two tokens is for either of them, where bits differ.
    if (i % 2 == 0 && !OnCuda(GetParam()))
      request.sampling = {.temperature = 0.8, .top_k = 50, .seed = rng()};
    World world(nullptr, On());
    alone.push_back(world.Answer(request));
    requests.push_back(std::move(request));
  }
  World world(tier.get(), On());
  std::vector<SequenceId> ids;
  for (size_t i = 0; i < requests.size(); ++i) {
    ids.push_back(world.engine->Submit(requests[i]).value());
    if (i % 4 == 3) {  // others arrive while some run
      ASSERT_TRUE(world.engine->Step().value());
    }
  }
  while (world.engine->Step().value()) {
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectSame(world.engine->Take(ids[i]).value(), alone[i]);
    EXPECT_FALSE(world.engine->Take(ids[i]));
  }
}

TEST_P(EngineContractTest, APromptInMemoryIsReusedAndItsPagesShared) {
  World world(nullptr, On());
  const auto prompt = Prompt(5 * kChunk, 2);
  const Completion first = world.Answer(Ask(prompt));
  const Completion second = world.Answer(Ask(prompt));
  ExpectSame(first, second);
  EXPECT_EQ(second.report.tokens_reused, 5 * kChunk);
  EXPECT_EQ(second.report.tokens_computed, 0);

  // What was generated joins the cache too: the conversation so far is a prefix of the next turn.
  auto turn = prompt;
  Request request = Ask(prompt);
  request.max_tokens = kChunk + 5;
  const Completion answer = world.Answer(request);
  turn.insert(turn.end(), answer.tokens.begin(), answer.tokens.end());
  EXPECT_EQ(world.Answer(Ask(turn)).report.tokens_reused, 6 * kChunk);
}

// What one tenant has asked shows in nothing that another can measure.
TEST_P(EngineContractTest, RequestsOfDifferentSaltsShareNoChunks) {
  const auto tier = MakeTier();
  World world(tier.get(), On());
  Request one = Ask(Prompt(4 * kChunk + 5, 8)), other = one;
  one.salt = "one tenant";
  other.salt = "another";
  const Completion first = world.Answer(one);
  EXPECT_EQ(tier->Stats().chunks, 4u);
  const Completion second = world.Answer(other);
  ExpectSame(second, first);
  EXPECT_EQ(second.report.tokens_computed, 4 * kChunk + 5);
  EXPECT_EQ(tier->Stats().chunks, 8u);
  EXPECT_EQ(world.Answer(one).report.tokens_reused, 4 * kChunk);
}

TEST_P(EngineContractTest, FailingLoadsCostTimeOnly) {
  auto prompt = Prompt(900, 4);
  Completion plain;
  auto inner = MakeTier();
  {
    World world(inner.get(), On());
    plain = world.Answer(Ask(prompt));
  }
  int failed = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    auto kept = MakeTier();
    {
      World world(kept.get(), On());
      world.Answer(Ask(prompt));
    }
    FaultyTierOptions options;
    options.seed = seed;
    options.read_error = 0.3;
    options.read_corrupt = 0.3;
    options.copier = CopierOf(GetParam());
    FaultyTier faulty(std::move(kept), options);
    World world(&faulty, On());
    const Completion done = world.Answer(Ask(prompt, seed % 2 ? Policy::kLoad : Policy::kCake));
    ExpectSame(done, plain);
    failed += done.report.chunks_failed;
  }
  EXPECT_GT(failed, 20);
}

TEST_P(EngineContractTest, CancelledSequencesGiveEverythingBack) {
  auto inner = MakeTier();
  {
    World world(inner.get(), On());
    world.Answer(Ask(Prompt(600, 1)));
  }
  // Slow enough that reads are in flight whenever something is cancelled.
  ThrottledTierOptions slow;
  slow.rate_bytes_per_s = static_cast<double>(PageBytes()) * 200;
  slow.latency = Seconds(2e-3);
  ThrottledTier link(std::move(inner), slow);
  std::mt19937 rng(13);
  World world(&link, On());
  const Completion plain = world.Answer(Ask(Prompt(77, 9)));
  int in_flight = 0;
  for (int round = 0; round < 20; ++round) {
    world.pool->DropCached();
    std::vector<SequenceId> ids;
    for (int i = 0; i < 4; ++i) {
      ids.push_back(
          world.engine->Submit(Ask(Prompt(600, 1), i % 2 ? Policy::kLoad : Policy::kCake)).value());
    }
    for (int steps = 1 + rng() % 6; steps > 0; --steps) ASSERT_TRUE(world.engine->Step());
    in_flight += world.restorer->Stats().reads_in_flight;
    for (SequenceId id : ids) world.engine->Cancel(id);
    EXPECT_TRUE(world.engine->Take(ids[0]));
  }
  EXPECT_GT(in_flight, 20);
  world.pool->DropCached();
  ExpectSame(world.Answer(Ask(Prompt(77, 9))), plain);
}

TEST_P(EngineContractTest, StopsAtEndTokensAtTheCallersWordAndAtTheLimit) {
  World world(nullptr, On());
  const Completion plain = world.Answer(Ask(Prompt(50, 6)));
  EXPECT_EQ(plain.finish_reason, FinishReason::kLength);
  ASSERT_EQ(plain.tokens.size(), 12u);

  Request request = Ask(Prompt(50, 6));
  request.end_tokens = {plain.tokens[4]};
  Completion done = world.Answer(request);
  EXPECT_EQ(done.finish_reason, FinishReason::kStop);
  const size_t first =
      std::find(plain.tokens.begin(), plain.tokens.end(), plain.tokens[4]) - plain.tokens.begin();
  EXPECT_EQ(done.tokens.size(), first + 1);

  request = Ask(Prompt(50, 6));
  int heard = 0;
  request.on_token = [&](const TokenEvent&) { return ++heard < 3; };
  done = world.Answer(request);
  EXPECT_EQ(done.finish_reason, FinishReason::kStop);
  EXPECT_EQ(done.tokens.size(), 3u);
}

// What an answer's tokens are worth is the same as part of a prompt, whatever memory holds of it.
TEST_P(EngineContractTest, ScoresPromptsAsItScoresAnswers) {
  World world(nullptr, On());
  Request request = Ask(Prompt(5 * kChunk + 7, 3));
  request.max_tokens = 40;
  const Completion answer = world.Answer(request);
  const size_t prompt = request.prompt.size();
  request.prompt.insert(request.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  request.prompt_logprobs = true;
  request.top_logprobs = 2;
  std::vector<TokenScore> told;
  request.on_token = [&](const TokenEvent& event) {
    told.insert(told.end(), event.prompt.begin(), event.prompt.end());
    return true;
  };
  const Completion scored = world.Answer(request);
  ASSERT_EQ(scored.prompt_scores.size(), request.prompt.size() - 1);
  EXPECT_EQ(told.size(), scored.prompt_scores.size());
  for (size_t i = 0; i < answer.tokens.size(); ++i) {
    const TokenScore& score = scored.prompt_scores[prompt - 1 + i];
    EXPECT_NEAR(score.logprob, answer.logprobs[i], LogprobTolerance(GetParam()));
    EXPECT_EQ(score.top.at(0).token, answer.tokens[i]);  // greedy
    EXPECT_GE(score.top[0].logprob, score.top.at(1).logprob);
  }
  EXPECT_EQ(scored.report.tokens_computed, scored.report.prompt_tokens);
}

TEST_P(EngineContractTest, KeepsNewChunksOnceAndOnlyWhenAsked) {
  auto tier = MakeTier();
  World world(tier.get(), On());
  Request request = Ask(Prompt(4 * kChunk, 8));
  request.store = false;
  world.Answer(request);
  EXPECT_EQ(tier->Stats().chunks, 0u);
  world.Answer(Ask(Prompt(4 * kChunk, 8)));
  EXPECT_EQ(tier->Stats().chunks, 4u);
  world.Answer(Ask(Prompt(4 * kChunk, 8)));
  EXPECT_EQ(tier->Stats().writes, 4u);
  EXPECT_EQ(world.engine->write_stats().dropped(), 0u);
}

// The RAM tier is the page cache: what is in memory is adopted, neither read nor copied.
TEST_P(EngineContractTest, PagesInMemoryAreAdoptedWithoutAReadUntilTheirRoomIsNeeded) {
  auto tier = MakeTier();
  World world(tier.get(), On(16 + 8));
  const auto prompt = Prompt(4 * kChunk + 3, 8);
  const Completion first = world.Answer(Ask(prompt));
  const auto page_of = [&](int chunk) {
    const auto keys = ChunkKeys(world.model->identity().Root(), prompt, kChunk);
    return world.pool->Lookup(keys[chunk])->id();
  };
  const PageId page = page_of(2);
  const Completion again = world.Answer(Ask(prompt));
  ExpectSame(again, first);
  EXPECT_EQ(again.report.tokens_reused, 4 * kChunk);
  EXPECT_EQ(page_of(2), page) << "the same page";
  EXPECT_EQ(tier->Stats().reads, 0u);
  for (int i = 0; i < 6; ++i) world.Answer(Ask(Prompt(5 * kChunk, 100 + i)));
  EXPECT_LE(world.pool->Stats().cached, world.pool->pages());
  const Completion later = world.Answer(Ask(prompt, Policy::kLoad));
  ExpectSame(later, first);
  EXPECT_EQ(later.report.tokens_reused, 0) << "others needed the room";
  EXPECT_EQ(later.report.loaded(), 4 * kChunk);
}

}  // namespace
}  // namespace kvcake
