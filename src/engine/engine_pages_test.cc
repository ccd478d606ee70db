// More requests than pages.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine_testing.h"
#include "store/slow_tiers_testing.h"

namespace kvcake {
namespace {

Request RandomAsk(std::mt19937& rng) {
  // A few documents, of which each prompt is a part: some share their pages.
  Request request = Ask(Prompt(5 * kChunk, rng() % 4));
  request.prompt.resize(1 + rng() % request.prompt.size());
  request.max_tokens = static_cast<int>(1 + rng() % (3 * kChunk));
  constexpr Policy kPolicies[] = {Policy::kCake, Policy::kLoad, Policy::kCompute};
  request.policy = kPolicies[rng() % 3];
  request.store = rng() % 4 != 0;
  request.logprobs = true;
  request.prompt_logprobs = rng() % 4 == 0;
  if (rng() % 2 == 0) {
    request.sampling = {.temperature = 1, .seed = rng(), .repetition_penalty = 1.2};
  }
  return request;
}

TEST(EnginePagesTest, RequestsWaitForPagesAndAllAreAnswered) {
  World world(nullptr, {.pages = kReserved + 12});
  std::vector<SequenceId> ids;
  for (int i = 0; i < 8; ++i) {
    ids.push_back(world.engine->Submit(Ask(Prompt(5 * kChunk, i))).value());  // 6 pages each
  }
  while (world.engine->Step().value()) {
  }
  for (SequenceId id : ids) {
    EXPECT_EQ(world.engine->Take(id)->finish_reason, FinishReason::kLength);
  }
  EXPECT_EQ(world.engine->preemptions(), 0u);  // two at a time
}

TEST(EnginePagesTest, TheTimesOfAnAnswerAreInSeconds) {
  FakeClock clock;
  World world(nullptr, {.clock = &clock});
  world.MakeEngine({.slice_tokens = kSlice, .max_sequences = 1});
  Request request = Ask(Prompt(20, 1));
  request.max_tokens = 2;
  std::vector<SequenceId> ids;
  for (int i = 0; i < 2; ++i) ids.push_back(world.engine->Submit(request).value());
  for (const double after : {1, 2, 4, 8}) {
    ASSERT_TRUE(world.engine->Step());
    clock.Advance(Seconds(after));
  }
  const Completion first = world.engine->Take(ids[0]).value();
  EXPECT_DOUBLE_EQ(first.queue_s, 0);
  EXPECT_DOUBLE_EQ(first.ttft_s, 0);
  EXPECT_DOUBLE_EQ(first.decode_s, 1);
  const Completion second = world.engine->Take(ids[1]).value();
  EXPECT_DOUBLE_EQ(second.queue_s, 1 + 2);
  EXPECT_DOUBLE_EQ(second.ttft_s, 1 + 2);
  EXPECT_DOUBLE_EQ(second.decode_s, 4);
}

// Whoever waits, for admission or after a preemption: to wait, to restore, to compute, to answer.
TEST(EnginePagesTest, TheTimesOfAnAnswerFollowEachOther) {
  World world(nullptr, {.pages = kReserved + 10});
  std::vector<SequenceId> ids;
  const TimePoint began = Clock::Real().Now();
  for (int i = 0; i < 6; ++i) {
    Request request = Ask(Prompt(2 * kChunk, i));
    request.max_tokens = 6 * kChunk;
    ids.push_back(world.engine->Submit(std::move(request)).value());
  }
  while (world.engine->Step().value()) {
  }
  const Seconds took = Clock::Real().Now() - began;
  int preempted = 0;
  for (const SequenceId id : ids) {
    const Completion done = world.engine->Take(id).value();
    EXPECT_LT(done.queue_s + done.restore_s, done.ttft_s);
    EXPECT_LT(done.ttft_s + done.decode_s, took.count());
    preempted += done.preemptions - done.preempted_in_prompt;
  }
  EXPECT_GT(preempted, 0);
}

// What a scored prompt had come to is scored again, once.
TEST(EnginePagesTest, AScoredPromptIsPreemptedBeforeItsFirstToken) {
  World world(nullptr, {.pages = kReserved + 10});
  world.MakeEngine({.slice_tokens = kSlice, .scored_tokens_max = 1});
  Request growing = Ask(Prompt(2 * kChunk, 1)), scored = Ask(Prompt(4 * kChunk + 5, 2));
  growing.max_tokens = 8 * kChunk;
  scored.prompt_logprobs = true;
  const SequenceId oldest = world.engine->Submit(growing).value();
  const SequenceId youngest = world.engine->Submit(scored).value();
  while (world.engine->Step().value()) {
  }
  EXPECT_EQ(world.engine->Take(oldest)->preemptions, 0);
  const Completion completion = world.engine->Take(youngest).value();
  EXPECT_GT(completion.preempted_in_prompt, 0);
  int computed = 0;
  for (const TimelineEntry& entry : completion.report.timeline) computed += entry.tokens;
  EXPECT_EQ(computed, 4 * kChunk + 5) << "as it was computed in the end";
  World alone(nullptr);
  const Completion expected = alone.Answer(scored);
  ASSERT_EQ(completion.prompt_scores.size(), expected.prompt_scores.size());
  for (size_t i = 0; i < expected.prompt_scores.size(); ++i) {
    EXPECT_EQ(completion.prompt_scores[i].logprob, expected.prompt_scores[i].logprob) << i;
  }
}

// Whatever is preempted, whenever, and however it is restored: the bits of an answer made alone.
TEST(EnginePagesTest, PreemptionsChangeNoAnswer) {
  // What the random requests must have met, or the test shows nothing of it.
  int in_prompt = 0, in_scored_prompt = 0, in_answer = 0, loaded = 0, reused = 0, cancelled = 0;
  for (uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    const auto tier = MakeTier();
    World world(seed % 3 == 2 ? nullptr : tier.get(),
                {.pages = kReserved + 8 + static_cast<int>(rng() % 4)});
    world.MakeEngine({.slice_tokens = kSlice, .scored_tokens_max = 1});
    std::map<SequenceId, Request> asked;
    SequenceId oldest = 0;
    for (int i = 0; i < 8; ++i) {
      Request request = RandomAsk(rng);
      const SequenceId id = world.engine->Submit(request).value();
      if (oldest == 0) oldest = id;
      asked[id] = std::move(request);
      for (int steps = static_cast<int>(rng() % 40); i >= 4 && steps > 0; --steps) {
        ASSERT_TRUE(world.engine->Step());
      }
    }
    while (world.engine->Step().value()) {
      if (rng() % 30 == 0) {
        world.engine->FlushStore();
        world.pool->DropCached();
      }
      if (rng() % 60 != 0) continue;
      const SequenceId id = oldest + rng() % asked.size();
      world.engine->Cancel(id);
    }
    World alone(nullptr);
    for (auto& [id, request] : asked) {
      const auto completion = world.engine->Take(id);
      ASSERT_TRUE(completion);
      if (id == oldest) {
        EXPECT_EQ(completion->preemptions, 0);
      }
      in_prompt += completion->preempted_in_prompt;
      in_scored_prompt += request.prompt_logprobs ? completion->preempted_in_prompt : 0;
      in_answer += completion->preemptions - completion->preempted_in_prompt;
      loaded += completion->report.loaded();
      reused += completion->report.tokens_reused;
      cancelled += completion->finish_reason == FinishReason::kCancelled ? 1 : 0;
      const Completion expected = alone.Answer(std::move(request));
      if (completion->finish_reason != FinishReason::kCancelled) {
        ExpectSame(*completion, expected);
        EXPECT_EQ(completion->report.prompt_tokens, expected.report.prompt_tokens);
        continue;
      }
      const size_t made = completion->tokens.size();
      ASSERT_LE(made, expected.tokens.size());
      EXPECT_TRUE(std::equal(completion->tokens.begin(), completion->tokens.end(),
                             expected.tokens.begin()));
    }
  }
  EXPECT_GT(in_prompt, 0);
  EXPECT_GT(in_scored_prompt, 0);
  EXPECT_GT(in_answer, 0);
  EXPECT_GT(loaded, 0);
  EXPECT_GT(reused, 0);
  EXPECT_GT(cancelled, 0);
}

// What a preempted answer has come to is read back, not computed again.
TEST(EnginePagesTest, WhatWasPreemptedComesFromTheStore) {
  const auto tier = MakeTier();
  World world(tier.get(), {.pages = kReserved + 10});
  std::vector<SequenceId> ids;
  for (int i = 0; i < 4; ++i) {
    Request request = Ask(Prompt(2 * kChunk, i), Policy::kLoad);
    request.max_tokens = 6 * kChunk;
    ids.push_back(world.engine->Submit(std::move(request)).value());
  }
  uint64_t preemptions = 0;
  while (world.engine->Step().value()) {
    if (world.engine->preemptions() == preemptions) continue;
    preemptions = world.engine->preemptions();
    world.engine->FlushStore();
    world.pool->DropCached();
  }
  int preempted = 0;
  for (const SequenceId id : ids) {
    const Completion completion = world.engine->Take(id).value();
    EXPECT_EQ(completion.tokens.size(), 6u * kChunk);
    EXPECT_EQ(completion.report.loaded(), 0);  // of the prompt, which was new
    preempted += completion.preemptions;
  }
  EXPECT_EQ(world.engine->preemptions(), static_cast<uint64_t>(preempted));
  EXPECT_GT(preempted, 0);
  EXPECT_GT(tier->Stats().reads, 0u);
}

// Reads that never come back hold more pages than are kept for them.
TEST(EnginePagesTest, AHungDeviceEndsWhatCannotBeAnsweredAndNothingElse) {
  const auto tier = MakeTier<HungTier>();
  const auto prompt = Prompt(6 * kChunk + 5, 1);
  {
    World before(tier.get());
    before.Answer(Ask(prompt, Policy::kCompute));
  }
  const Seconds stall(0.1);
  World world(tier.get(), {.pages = 2 + 8, .stall_timeout = stall});
  world.MakeEngine({.slice_tokens = kSlice, .read_reserve_pages = 2, .stall_timeout = stall});
  // Four reads begin and hang: their pages and seven more are needed to compute it all.
  const auto hung = world.engine->Answer(Ask(prompt));
  ASSERT_FALSE(hung);
  EXPECT_EQ(hung.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(hung.error().message.find("4 pages of KV cache are held"), std::string::npos)
      << hung.error().message;
  Request small = Ask(Prompt(4 * kChunk, 2));
  EXPECT_TRUE(world.engine->Answer(small)) << "it fits in what is left";
  tier->Answer();
  EXPECT_TRUE(world.engine->Answer(Ask(prompt, Policy::kCompute))) << "the pages have come back";
}

TEST(EnginePagesTest, WhatWritesHoldIsPromisedToNobody) {
  const auto tier = MakeTier<GatedTier>();
  World world(tier.get(), {.pages = 8});
  MutexLock closed(tier->gate);
  world.MakeEngine({.slice_tokens = kSlice, .read_reserve_pages = 0});
  Engine& engine = *world.engine;
  ASSERT_TRUE(engine.Answer(Ask(Prompt(kChunk, 1))));
  while (engine.write_stats().writing == 0) std::this_thread::yield();
  const SequenceId id = engine.Submit(Ask(Prompt(7 * kChunk + 5, 2))).value();  // all pages
  ASSERT_TRUE(engine.Step().value());
  EXPECT_EQ(engine.running(), 0u);
  closed.Unlock();
  while (engine.Step().value()) {
  }
  EXPECT_EQ(engine.Take(id)->tokens.size(), 12u);
}

// A hundred questions about one document of 64 pages, each with at most two pages of its own.
void ExpectManyRunTogether(World& world) {
  const auto document = Prompt(64 * kChunk, 1);
  std::vector<SequenceId> ids;
  for (int i = 0; i < 100; ++i) {
    Request request = Ask(document);
    for (const int32_t token : Prompt(kChunk / 2, 100 + i)) request.prompt.push_back(token);
    request.max_tokens = 3 * kChunk / 2;
    ids.push_back(world.engine->Submit(std::move(request)).value());
  }
  size_t together = 0;
  while (world.engine->Step().value()) together = std::max(together, world.engine->running());
  EXPECT_EQ(together, 100u);
  EXPECT_EQ(world.engine->preemptions(), 0u);
  for (const SequenceId id : ids) {
    EXPECT_EQ(world.engine->Take(id)->tokens.size(), 3u * kChunk / 2);
  }
}

TEST(EnginePagesTest, ManyRequestsOnOneDocumentRunTogether) {
  World world(nullptr, {.pages = 300});
  world.MakeEngine({.slice_tokens = kSlice / 2, .max_sequences = 128});
  ExpectManyRunTogether(world);
}

// What several requests had in common waits to be written once, and gives its pages.
TEST(EnginePagesTest, ManyRequestsRunTogetherInFrontOfAStoreThatHangs) {
  const auto tier = MakeTier<GatedTier>();
  World world(tier.get(), {.pages = 300});
  MutexLock closed(tier->gate);
  world.MakeEngine({.slice_tokens = kSlice / 2, .max_sequences = 128});
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(world.engine->Answer(Ask(Prompt(128 * kChunk, 2))));
  }
  ExpectManyRunTogether(world);
  EXPECT_GT(world.engine->write_stats().dropped_wanted, 0u);
}

// A second use is another request's: neither a prompt that is scored, nor one that is preempted and
// restored, is its own.
TEST(EnginePagesTest, ARequestUsesItsChunksOnce) {
  const auto tier = MakeTier();
  World world(tier.get(), {.pages = kReserved + 10, .writes = StoreWrites::kSecondUse});
  Request growing = Ask(Prompt(2 * kChunk, 1)), preempted = Ask(Prompt(4 * kChunk + 5, 2));
  growing.max_tokens = 8 * kChunk;
  preempted.max_tokens = 3 * kChunk;
  preempted.prompt_logprobs = true;
  world.engine->Submit(growing).value();
  world.engine->Submit(preempted).value();
  while (world.engine->Step().value()) {
  }
  world.engine->FlushStore();
  EXPECT_GT(world.engine->preemptions(), 0u);
  EXPECT_EQ(world.engine->write_stats().written, 0u);
  EXPECT_EQ(world.engine->write_stats().not_admitted, 9u + 7u);
  world.Answer(Ask(preempted.prompt));
  EXPECT_EQ(world.engine->write_stats().written, 4u) << "now they come up again";
}

// A device may fail once.
TEST(EnginePagesTest, AFailedPassEndsItsRequestsAndNoOthers) {
  class Failing : public ModelDecorator {
   public:
    using ModelDecorator::ModelDecorator;
    Result<std::span<const float>> Forward(std::span<const Slice> batch) override {
      if (std::exchange(fails, false)) return Fail(ErrorCode::kIo, "the device is gone");
      return inner_.Forward(batch);
    }
    bool fails = false;
  };
  World world(nullptr);
  Failing model(*world.model);
  world.MakeEngine(model, {.slice_tokens = kSlice, .max_sequences = 2});
  std::vector<SequenceId> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(world.engine->Submit(Ask(Prompt(kChunk + 5, i))).value());
  }
  model.fails = true;
  const auto failed = world.engine->Step();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "the device is gone");
  ASSERT_EQ(world.engine->running(), 0u) << "they would run for ever";
  EXPECT_EQ(world.pool->Stats().referenced, 0u);
  for (const SequenceId id : {ids[0], ids[1]}) {
    const auto ended = world.engine->Take(id);
    ASSERT_TRUE(ended);
    EXPECT_EQ(ended->finish_reason, FinishReason::kError);
  }
  while (world.engine->Step().value()) {
  }
  EXPECT_EQ(world.engine->Take(ids[2]).value().tokens.size(), 12u);
}

}  // namespace
}  // namespace kvcake
