#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "engine/engine_testing.h"
#include "engine/step_budget.h"
#include "store/faulty_tier_testing.h"
#include "store/slow_tiers_testing.h"
#include "store/throttled_tier.h"

namespace kvcake {
namespace {

// Where the model samples, and where the engine does for the sake of the logits.
TEST(EngineTest, AnswersDoNotDependOnWhoSamples) {
  std::vector<Request> requests;
  std::vector<Completion> alone;
  for (int i = 0; i < 16; ++i) {
    Request request = Ask(Prompt(20 + 17 * i, i));
    request.max_tokens = 5 + i;
    if (i % 2) request.sampling = {.temperature = 0.9, .top_k = 40, .top_p = 0.9, .seed = 3};
    if (i % 8 / 2 == 1) request.logprobs = true;
    if (i % 8 / 2 == 2) request.logprobs = request.prompt_logprobs = true;
    if (i % 8 / 2 == 3) request.sampling.repetition_penalty = 1.5;
    World world(nullptr);
    alone.push_back(world.engine->Answer(request).value());
    const bool model_samples = i % 8 / 2 == 0;
    EXPECT_EQ(world.model->sampled().size(), model_samples ? 1 : 0) << i;
    if (model_samples) {
      EXPECT_EQ(world.Answer(request).tokens, alone.back().tokens) << "with log probabilities";
    }
    requests.push_back(std::move(request));
  }
  World world(nullptr);
  std::vector<SequenceId> ids;
  for (const Request& request : requests) ids.push_back(world.engine->Submit(request).value());
  while (world.engine->Step().value()) {
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectSame(world.engine->Take(ids[i]).value(), alone[i]);
  }
}

TEST(EngineTest, AnswersHaveTheirFewestTokensBeforeAnEndTokenIsChosen) {
  Request request = Ask(Prompt(40, 1));
  request.max_tokens = 12;
  World world(nullptr);
  const std::vector<int32_t> plain = world.Answer(request).tokens;
  request.end_tokens = {plain[0], plain[1]};
  EXPECT_EQ(world.Answer(request).tokens.size(), 1u);
  request.min_tokens = 5;
  const std::vector<int32_t> longer = world.Answer(request).tokens;
  ASSERT_GT(longer.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_NE(longer[i], plain[0]) << i;
    EXPECT_NE(longer[i], plain[1]) << i;
  }
  EXPECT_EQ(world.engine->Answer(request).value().tokens, longer) << "nor by the model itself";
  request.end_tokens = {plain[2]};
  request.sampling.logit_bias = {{plain[2], 100.0f}};  // chosen as soon as it may be
  const std::vector<int32_t> shortest = world.Answer(request).tokens;
  ASSERT_EQ(shortest.size(), 6u);
  EXPECT_EQ(std::count(shortest.begin(), shortest.end(), plain[2]), 1);
  EXPECT_EQ(shortest.back(), plain[2]);
  request.sampling.logit_bias.clear();
  request.end_tokens.clear();
  EXPECT_EQ(world.Answer(request).tokens, plain);  // nothing is kept from it
}

// Each of their tokens has logits, which take memory.
TEST(EngineTest, PromptsThatAreScoredTakeNoMoreOfAStepThanTheirShare) {
  class Counting : public ModelDecorator {
   public:
    using ModelDecorator::ModelDecorator;
    Result<std::span<const float>> Forward(std::span<const Slice> batch) override {
      size_t scored = 0, all = 0;
      for (const Slice& slice : batch) {
        scored += slice.logits == Slice::Logits::kAll ? slice.tokens.size() : 0;
        all += slice.tokens.size();
      }
      most_scored = std::max(most_scored, scored);
      most = std::max(most, all);
      return inner_.Forward(batch);
    }
    size_t most_scored = 0, most = 0;
  };
  std::vector<Request> requests;
  std::vector<Completion> alone;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(Ask(Prompt(200 + 50 * i, i)));
    requests.back().prompt_logprobs = i < 2;
    requests.back().logprobs = true;
    World world(nullptr);
    alone.push_back(world.Answer(requests.back()));
  }
  World world(nullptr);
  Counting model(*world.model);
  world.MakeEngine(model, {.slice_tokens = kSlice, .scored_tokens_max = 40});
  std::vector<SequenceId> ids;
  for (const Request& request : requests) ids.push_back(world.engine->Submit(request).value());
  while (world.engine->Step().value()) {
  }
  for (int i = 0; i < 3; ++i) ExpectSame(world.engine->Take(ids[i]).value(), alone[i]);
  EXPECT_EQ(model.most_scored, 40u);
  EXPECT_GT(model.most, 40u) << "the third prompt takes what is left";
  world.engine.reset();  // before the model that it borrows
}

TEST(EngineTest, RefusesWhatItCanNeverAnswer) {
  World world(nullptr, {.pages = 24});  // 16 of them are kept for reads
  const auto message = [&](Request request) {
    const auto id = world.engine->Submit(std::move(request));
    EXPECT_FALSE(id);
    return id ? "" : id.error().message;
  };
  EXPECT_NE(message(Ask({})).find("no tokens"), std::string::npos);
  EXPECT_NE(message(Ask({1, kVocab})).find("vocabulary of 512"), std::string::npos);
  EXPECT_NE(message(Ask({-1})).find("vocabulary"), std::string::npos);
  EXPECT_NE(message(Ask(Prompt(16384, 1))).find("context is 16384"), std::string::npos);
  const std::string too_long = message(Ask(Prompt(500, 1)));
  EXPECT_NE(too_long.find("--ram-capacity leaves 8"), std::string::npos) << too_long;
  EXPECT_NE(too_long.find("500 prompt tokens and up to 12 new ones need 16 pages"),
            std::string::npos)
      << too_long;
  Request request = Ask(Prompt(16385, 1));
  request.max_tokens = 0;
  EXPECT_NE(message(request).find("context is 16384"), std::string::npos);
  request = Ask({1});
  request.max_tokens = -1;
  EXPECT_NE(message(request).find("max_tokens"), std::string::npos);
  request = Ask({1});
  request.sampling.top_p = 2;
  EXPECT_NE(message(request).find("top_p"), std::string::npos);
  EXPECT_FALSE(world.engine->Step().value());
}

TEST(EngineTest, NoMoreRequestsWaitThanMay) {
  World world(nullptr);
  world.MakeEngine({.slice_tokens = kSlice, .max_sequences = 1, .waiting_max = 2});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(world.engine->Submit(Ask(Prompt(20, i))));
  const auto refused = world.engine->Submit(Ask(Prompt(20, 3)));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(refused.error().message, "3 requests are being answered or wait already");
  while (world.engine->Step().value()) {
  }
  EXPECT_TRUE(world.engine->Submit(Ask(Prompt(20, 3))));
}

TEST(EngineTest, AnAnswerEndsWithTheModelsContext) {
  class ShortContext : public ModelDecorator {
   public:
    using ModelDecorator::ModelDecorator;
    int max_positions() const override { return 40; }
    Result<std::span<const float>> Forward(std::span<const Slice> batch) override {
      return inner_.Forward(batch);
    }
  };
  World world(nullptr);
  ShortContext model(*world.model);
  world.MakeEngine(model, {.slice_tokens = kSlice});
  const Completion done = world.Answer(Ask(Prompt(35, 1)));
  EXPECT_EQ(done.finish_reason, FinishReason::kLength);
  EXPECT_EQ(done.tokens.size(), 5u);
  EXPECT_EQ(world.Answer(Ask(Prompt(39, 1))).tokens.size(), 1u);
  EXPECT_FALSE(world.engine->Submit(Ask(Prompt(40, 1))));
  world.engine.reset();  // before the model that it borrows
}

TEST(EngineTest, WhatWasNotAskedForYieldsToThePagesThatThereAre) {
  World world(nullptr, {.pages = kReserved + 3});
  Request request = Ask(Prompt(kChunk + 1, 1));
  request.max_tokens = 1000 * kChunk;
  EXPECT_FALSE(world.engine->Submit(request));
  request.max_tokens_yields = true;
  EXPECT_EQ(world.Answer(request).tokens.size(), 2u * kChunk - 1);
  request.max_tokens = 3;
  EXPECT_EQ(world.Answer(request).tokens.size(), 3u);
  request.prompt = Prompt(3 * kChunk, 1);  // no room for a single one
  EXPECT_FALSE(world.engine->Submit(request));
}

// The second has the pages that the first gives back, and waits for no more.
TEST(EngineTest, APromptThatIsOnlyScoredNeedsNoPageBeyondItsOwn) {
  World world(nullptr, {.pages = kReserved + 3});
  Request request = Ask(Prompt(3 * kChunk, 1));
  request.logprobs = request.prompt_logprobs = true;
  request.max_tokens = 0;
  for (int i = 0; i < 2; ++i) {
    const Completion completion = world.Answer(request);
    EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
    EXPECT_EQ(completion.prompt_scores.size(), 3u * kChunk - 1);
  }
}

// A store whose writes take their time holds pages of finished sequences: that may cost chunks, not
// requests.
TEST(EngineTest, ASlowStoreDropsChunksAndDelaysNobody) {
  const auto tier = MakeTier<GatedTier>();
  World world(tier.get(), {.pages = 16 + 12});
  MutexLock closed(tier->gate);
  for (int i = 0; i < 12; ++i) {
    const auto done = world.engine->Answer(Ask(Prompt(10 * kChunk, 50 + i)));
    ASSERT_TRUE(done);
    EXPECT_EQ(done->tokens.size(), 12u);
  }
  EXPECT_GT(world.engine->write_stats().dropped(), 0u);
  closed.Unlock();
  world.engine->FlushStore();
  EXPECT_GT(world.engine->write_stats().written, 0u);
}

// Nor steps: somebody decodes all the while, so that the engine never sleeps.
TEST(EngineTest, QueuedWritesGiveTheirPagesToANewPromptAtOnce) {
  const auto tier = MakeTier<GatedTier>();
  World world(tier.get(), {.pages = 23});
  MutexLock closed(tier->gate);
  world.MakeEngine({.slice_tokens = kSlice, .read_reserve_pages = 2});
  for (int i = 0; i < 3; ++i) {
    Request decoder = Ask(Prompt(2 * kChunk, i));
    decoder.max_tokens = 2 * kChunk - 1;
    decoder.store = false;
    ASSERT_TRUE(world.engine->Submit(decoder));
  }
  for (int i = 0; i < 5; ++i) {  // whose chunks wait to be written
    Request request = Ask(Prompt(4 * kChunk, 50 + i));
    request.max_tokens = 1;
    ASSERT_TRUE(world.engine->Answer(request));
  }
  ASSERT_EQ(world.engine->running(), 3u) << "the decoders";
  for (int i = 0; i < 3; ++i) {
    Request request = Ask(Prompt(4 * kChunk, 100 + i));
    int steps = 0, first_token = 0;
    request.max_tokens = 2;
    request.on_token = [&](const TokenEvent&) {
      if (first_token == 0) first_token = steps;
      return true;
    };
    const SequenceId id = world.engine->Submit(request).value();
    for (; first_token == 0 && steps < 100; ++steps) ASSERT_TRUE(world.engine->Step());
    EXPECT_LE(first_token, 3) << "two slices beside the decoders";
    while (!world.engine->Take(id)) ASSERT_TRUE(world.engine->Step());
  }
  EXPECT_GT(world.engine->write_stats().dropped_wanted, 0u);
  EXPECT_GT(world.engine->write_stats().queued, 0u) << "no more than needed";
}

// Its pages are shared: nobody may write to them.
TEST(EngineTest, AFullyRestoredPromptWritesNoKv) {
  class Recording : public ModelDecorator {
   public:
    using ModelDecorator::ModelDecorator;
    Result<std::span<const float>> Forward(std::span<const Slice> batch) override {
      for (const Slice& slice : batch) slices.push_back({slice.start, slice.write_kv});
      return inner_.Forward(batch);
    }
    std::vector<std::pair<int, bool>> slices;
  };
  World world(nullptr);
  Recording model(*world.model);
  world.MakeEngine(model, {.slice_tokens = kSlice});
  Request request = Ask(Prompt(5 * kChunk, 1));
  request.max_tokens = 3;
  const Completion computed = world.Answer(request);
  model.slices.clear();
  ExpectSame(world.Answer(request), computed);
  const int last = 5 * kChunk - 1;
  const std::vector<std::pair<int, bool>> want = {
      {last, false}, {last + 1, true}, {last + 2, true}};
  EXPECT_EQ(model.slices, want);
  world.engine.reset();  // before the model that it borrows
}

TEST(EngineTest, APromptThatIsCancelledReportsNoMoreThanWasComputedOfIt) {
  World world(nullptr);
  Request scored = Ask(Prompt(5 * kChunk + 5, 1));  // none of its chunks is restored
  scored.logprobs = scored.prompt_logprobs = true;
  const SequenceId first = world.engine->Submit(scored).value();
  const SequenceId second = world.engine->Submit(Ask(Prompt(3 * kChunk + 5, 2))).value();
  ASSERT_TRUE(world.engine->Step());
  world.engine->Cancel(first);
  world.engine->Cancel(second);
  const RestoreReport report = world.engine->Take(first)->report;
  EXPECT_EQ(report.prompt_tokens, 5 * kChunk + 5);
  EXPECT_EQ(report.tokens_computed, kSlice);
  EXPECT_EQ(world.engine->Take(second)->report.tokens_computed, kChunk);
}

TEST(EngineTest, WhatCameOfThePromptIsToldWithTheFirstToken) {
  World world(nullptr);
  ASSERT_TRUE(world.engine->WarmUp());
  Request request = Ask(Prompt(4 * kChunk + 5, 1));
  int tokens = 0;
  request.on_token = [&](const TokenEvent& event) {
    EXPECT_EQ(event.begun != nullptr, tokens++ == 0);
    if (event.begun != nullptr) {
      EXPECT_GT(event.begun->ttft_s, 0);
      EXPECT_EQ(event.begun->report.tokens_computed, 4 * kChunk + 5);
      EXPECT_GT(event.begun->report.efficiency, 0);
      EXPECT_LE(event.begun->report.efficiency, 1);
    }
    return true;
  };
  world.Answer(request);
  EXPECT_EQ(tokens, request.max_tokens);
}

TEST(EngineTest, TheLikeliestAreToldWithEachToken) {
  World world(nullptr);
  Request request = Ask(Prompt(20, 1));
  request.logprobs = true;
  request.top_logprobs = 3;
  request.on_token = [&](const TokenEvent& event) {
    EXPECT_EQ(event.top.size(), 3u);
    if (event.top.size() != 3) return false;
    EXPECT_EQ(event.top[0].token, event.token) << "greedy";
    EXPECT_EQ(event.top[0].logprob, event.logprob);
    EXPECT_LE(event.top[2].logprob, event.top[1].logprob);
    return true;
  };
  SequenceId asked = 0;
  int steps = 0;
  const auto done = world.engine->Answer(request, [&](SequenceId id) {
    asked = id;
    ++steps;
  });
  ASSERT_TRUE(done);
  EXPECT_NE(asked, 0u);
  EXPECT_EQ(steps, request.max_tokens) << "told of after each step";
}

TEST(EngineTest, MemoryForgetsWhatATenantHasLeftInIt) {
  World world(nullptr);
  Request anns = Ask(Prompt(4 * kChunk + 5, 1)), bobs = Ask(Prompt(4 * kChunk + 5, 2));
  anns.tenant = anns.salt = "ann";
  bobs.tenant = bobs.salt = "bob";
  for (const Request& request : {anns, bobs}) world.Answer(request);
  world.engine->DropCachedOf("ann");
  EXPECT_EQ(world.Answer(anns).report.tokens_reused, 0);
  EXPECT_EQ(world.Answer(bobs).report.tokens_reused, 4 * kChunk);
}

// Its pages are the pool's, and no sequence's.
TEST(EngineTest, WhatOthersInItsStepsHoldIsPromisedToNobody) {
  struct Others : StepBudget {
    ComputeBudget ForRestorations(TimePoint) override { return {.chunks = 4}; }
    std::optional<Slice> Fill(int, int) override { return std::nullopt; }
    void Ran(TimePoint, int) override {}
    uint64_t pages() const override { return 5; }
  };
  World world(nullptr);
  const int64_t all = world.engine->tokens_max();
  Others others;
  world.engine->SetStepBudget(&others);
  EXPECT_EQ(world.engine->tokens_max(), all - 5 * kChunk);
  world.engine->SetStepBudget(nullptr);
  EXPECT_EQ(world.engine->tokens_max(), all);
}

TEST(EngineTest, TheTimelineHasTheStepsThatComputedAPromptsEnd) {
  World world(nullptr);
  const RestoreReport report = world.Answer(Ask(Prompt(20, 1))).report;
  ASSERT_EQ(report.timeline.size(), 1u);
  const TimelineEntry& step = report.timeline[0];
  EXPECT_EQ(step.lane, "compute");
  EXPECT_EQ(step.first_token, 0);
  EXPECT_EQ(step.tokens, 20);
  EXPECT_GT(step.start_s, 0);
  EXPECT_GT(step.end_s, step.start_s);
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
  const auto loaded = [&](double load_per_compute, Seconds per_token) {
    link.SetRate(all / (load_per_compute * 3000 * per_token.count()));
    World world(&link, {.per_token = per_token});
    EXPECT_TRUE(world.engine->WarmUp());
    const Completion done = world.Answer(Ask(prompt));
    ExpectSame(done, plain);
    return done.report.loaded();
  };
  // The slower lane's time is long beside what a busy machine adds to the other's.
  EXPECT_GT(loaded(1.0 / 100, Seconds(1e-3)), 2000);
  EXPECT_LT(loaded(100, Seconds(1e-4)), 500);
}

}  // namespace
}  // namespace kvcake
