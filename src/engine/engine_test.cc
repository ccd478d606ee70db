#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "engine/engine_testing.h"
#include "store/faulty_tier.h"
#include "store/throttled_tier.h"

namespace kvcake {
namespace {

TEST(EngineTest, EveryPolicyGivesTheSameBits) {
  auto tier = MakeTier();
  for (int tokens : {1, kChunk - 1, kChunk, kChunk + 1, 4 * kChunk, 700}) {
    SCOPED_TRACE(tokens);
    const auto prompt = Prompt(tokens, tokens);
    Completion plain;
    {
      World world(nullptr);
      plain = world.Answer(Ask(prompt));
      EXPECT_EQ(plain.report.tokens_computed, tokens);
    }
    for (Policy policy : {Policy::kCompute, Policy::kLoad, Policy::kCake}) {
      SCOPED_TRACE(PolicyName(policy));
      World world(tier.get());
      const Completion done = world.Answer(Ask(prompt, policy));
      ExpectSame(done, plain);
      const int full = tokens / kChunk * kChunk;
      if (policy == Policy::kLoad && full > 0) {
        EXPECT_EQ(done.report.tokens_loaded.at("memory"), full);
      }
    }
  }
}

// Random models of every family, where any slip shows in the bits, and the trained one, which looks
// things up.
class ForcedSplitTest : public testing::TestWithParam<const char*> {};

void CheckForcedSplits(const std::string& dir, WeightFormat weights, int splits) {
  auto tier = MakeTier(dir);
  const auto prompt = Prompt(1100, 3);
  World world(tier.get(), /*pages=*/256, Seconds(0), dir, weights);
  const Completion plain = world.Answer(Ask(prompt, Policy::kCompute));
  std::mt19937 rng(7);
  for (int i = 0; i < splits; ++i) {
    const int split = static_cast<int>(rng() % (1100 / kChunk + 1));
    SCOPED_TRACE(split);
    world.pool->DropCached();
    Request request = Ask(prompt);
    request.forced_split = split;
    const Completion done = world.Answer(std::move(request));
    ExpectSame(done, plain);
    EXPECT_EQ(done.report.tokens_computed, split * kChunk + 1100 % kChunk);
  }
}

std::string DirOf(const char* model) { return *model == '/' ? model : ModelDir(model); }

TEST_P(ForcedSplitTest, FiftyGiveTheSameBitsAsComputingAll) {
  CheckForcedSplits(DirOf(GetParam()), WeightFormat::kBf16, 50);
}

TEST_P(ForcedSplitTest, SoDoTenWithInt8Weights) {
  CheckForcedSplits(DirOf(GetParam()), WeightFormat::kInt8, 10);
}

INSTANTIATE_TEST_SUITE_P(Models, ForcedSplitTest,
                         testing::Values("tiny", "qwen2.5-0.5b", "qwen3-0.6b", "falcon-1b",
                                         "falcon-7b", "falcon-40b",
                                         KVCAKE_SOURCE_DIR "/models/demo"));

TEST(EngineTest, ManySequencesInOneBatchAnswerAsEachAlone) {
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
    if (i % 2 == 0) request.sampling = {.temperature = 0.8, .top_k = 50, .seed = rng()};
    World world(nullptr);
    alone.push_back(world.Answer(request));
    requests.push_back(std::move(request));
  }
  World world(tier.get());
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

TEST(EngineTest, APromptInMemoryIsReusedAndItsPagesShared) {
  World world(nullptr);
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

TEST(EngineTest, FailingLoadsCostTimeOnly) {
  auto prompt = Prompt(900, 4);
  Completion plain;
  auto inner = MakeTier();
  {
    World world(inner.get());
    plain = world.Answer(Ask(prompt));
  }
  int failed = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    auto kept = MakeTier();
    {
      World world(kept.get());
      world.Answer(Ask(prompt));
    }
    FaultyTierOptions options;
    options.seed = seed;
    options.read_error = 0.3;
    options.read_corrupt = 0.3;
    FaultyTier faulty(std::move(kept), options);
    World world(&faulty);
    const Completion done = world.Answer(Ask(prompt, seed % 2 ? Policy::kLoad : Policy::kCake));
    ExpectSame(done, plain);
    failed += done.report.chunks_failed;
  }
  EXPECT_GT(failed, 20);
}

TEST(EngineTest, CancelledSequencesGiveEverythingBack) {
  auto inner = MakeTier();
  {
    World world(inner.get());
    world.Answer(Ask(Prompt(600, 1)));
  }
  // Slow enough that reads are in flight whenever something is cancelled.
  ThrottledTierOptions slow;
  slow.rate_bytes_per_s = static_cast<double>(PageBytes()) * 200;
  slow.latency = Seconds(2e-3);
  ThrottledTier link(std::move(inner), slow);
  std::mt19937 rng(13);
  World world(&link);
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
    in_flight += world.restorer->ReadsInFlight();
    for (SequenceId id : ids) world.engine->Cancel(id);
    EXPECT_TRUE(world.engine->Take(ids[0]));
  }
  EXPECT_GT(in_flight, 20);
  world.pool->DropCached();
  ExpectSame(world.Answer(Ask(Prompt(77, 9))), plain);
}

TEST(EngineTest, StopsAtEndTokensAtTheCallersWordAndAtTheLimit) {
  World world(nullptr);
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
TEST(EngineTest, ScoresPromptsAsItScoresAnswers) {
  World world(nullptr);
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
    EXPECT_EQ(score.logprob, answer.logprobs[i]);
    EXPECT_EQ(score.top.at(0).token, answer.tokens[i]);  // greedy
    EXPECT_GE(score.top[0].logprob, score.top.at(1).logprob);
  }
  EXPECT_EQ(scored.report.tokens_computed, scored.report.prompt_tokens);
}

TEST(EngineTest, KeepsNewChunksOnceAndOnlyWhenAsked) {
  auto tier = MakeTier();
  World world(tier.get());
  Request request = Ask(Prompt(4 * kChunk, 8));
  request.store = false;
  world.Answer(request);
  EXPECT_EQ(tier->Stats().chunks, 0u);
  world.Answer(Ask(Prompt(4 * kChunk, 8)));
  EXPECT_EQ(tier->Stats().chunks, 4u);
  world.Answer(Ask(Prompt(4 * kChunk, 8)));
  EXPECT_EQ(tier->Stats().writes, 4u);
  EXPECT_EQ(world.engine->write_stats().dropped, 0u);
}

// The RAM tier is the page cache: what is in memory is adopted, neither read nor copied.
TEST(EngineTest, PagesInMemoryAreAdoptedWithoutAReadUntilTheirRoomIsNeeded) {
  auto tier = MakeTier();
  World world(tier.get(), /*pages=*/16 + 8);
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

TEST(EngineTest, RefusesWhatItCanNeverAnswer) {
  World world(nullptr, /*pages=*/24);  // 16 of them are kept for reads
  const auto message = [&](Request request) {
    const auto id = world.engine->Submit(std::move(request));
    EXPECT_FALSE(id);
    return id ? "" : id.error().message;
  };
  EXPECT_NE(message(Ask({})).find("no tokens"), std::string::npos);
  EXPECT_NE(message(Ask({1, kVocab})).find("vocabulary of 512"), std::string::npos);
  EXPECT_NE(message(Ask({-1})).find("vocabulary"), std::string::npos);
  EXPECT_NE(message(Ask(Prompt(16384, 1))).find("context is 16384"), std::string::npos);
  EXPECT_NE(message(Ask(Prompt(500, 1))).find("--ram-capacity"), std::string::npos);
  Request request = Ask({1});
  request.max_tokens = 0;
  EXPECT_NE(message(request).find("max_tokens"), std::string::npos);
  request = Ask({1});
  request.sampling.top_p = 2;
  EXPECT_NE(message(request).find("top_p"), std::string::npos);
  EXPECT_FALSE(world.engine->Step().value());
}

// A store whose writes take their time holds pages of finished sequences: that may cost chunks, not
// requests.
TEST(EngineTest, ASlowStoreDropsChunksAndDelaysNobody) {
  class SlowPut : public MemoryTier {
   public:
    using MemoryTier::MemoryTier;
    Status Put(const ChunkWrite& chunk) override {
      slow.wait(true);
      return MemoryTier::Put(chunk);
    }
    std::atomic<bool> slow{true};
  };
  MemoryTierOptions options;
  options.layout = TransformerModel::LayoutFor(LoadModelConfig(ModelDir()).value(), kChunk);
  SlowPut tier(options);
  World world(&tier, /*pages=*/16 + 12);
  for (int i = 0; i < 12; ++i) {
    const auto done = world.engine->Answer(Ask(Prompt(10 * kChunk, 50 + i)));
    ASSERT_TRUE(done);
    EXPECT_EQ(done->tokens.size(), 12u);
  }
  EXPECT_GT(world.engine->write_stats().dropped, 0u);
  tier.slow = false;
  tier.slow.notify_all();
  world.engine->FlushStore();
  EXPECT_GT(world.engine->write_stats().written, 0u);
}

// What is restored already goes before what still computes: it needs one short slice.
TEST(EngineTest, ARestoredPromptDoesNotQueueBehindALongOne) {
  World world(nullptr);
  const auto known = Prompt(4 * kChunk + 3, 1);
  world.Answer(Ask(known));
  const SequenceId slow = world.engine->Submit(Ask(Prompt(4000, 2))).value();
  ASSERT_TRUE(world.engine->Step());
  int steps = 0, first_token = -1;
  Request request = Ask(known);
  request.on_token = [&](const TokenEvent&) {
    if (first_token < 0) first_token = steps;
    return true;
  };
  ASSERT_TRUE(world.engine->Submit(request));
  for (; steps < 10; ++steps) ASSERT_TRUE(world.engine->Step());
  EXPECT_LE(first_token, 1);
  EXPECT_TRUE(world.engine->Progress(slow)) << "the long one is still at it";
  world.engine->Cancel(slow);
}

TEST(EngineTest, TheLanesMeetWhereTheLinkSaysSo) {
  constexpr Seconds kPerToken{1e-4};
  const auto prompt = Prompt(3000, 21);
  auto inner = MakeTier();
  Completion plain;
  {
    World world(inner.get());
    plain = world.Answer(Ask(prompt));
  }
  ThrottledTierOptions options;
  options.rate_bytes_per_s = 1e12;
  ThrottledTier link(std::move(inner), options);
  const double all = static_cast<double>(PageBytes()) * (3000 / kChunk);
  const auto loaded = [&](double load_per_compute) {
    link.SetRate(all / (load_per_compute * 3000 * kPerToken.count()));
    World world(&link, /*pages=*/256, kPerToken);
    EXPECT_TRUE(world.engine->WarmUp());
    const Completion done = world.Answer(Ask(prompt));
    ExpectSame(done, plain);
    return done.report.loaded();
  };
  EXPECT_GT(loaded(1.0 / 100), 2000);
  EXPECT_LT(loaded(100), 500);
}

}  // namespace
}  // namespace kvcake
