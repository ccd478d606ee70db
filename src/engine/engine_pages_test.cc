// More requests than pages.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/engine_testing.h"

namespace kvcake {
namespace {

constexpr int kReserved = 16;  // EngineOptions::read_reserve_pages

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

// Whatever is preempted, whenever, and however it is restored: the bits of an answer made alone.
TEST(EnginePagesTest, PreemptionsChangeNoAnswer) {
  uint64_t preemptions = 0;
  for (uint32_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    const auto tier = MakeTier();
    World world(seed % 3 == 2 ? nullptr : tier.get(),
                {.pages = kReserved + 8 + static_cast<int>(rng() % 4)});
    std::map<SequenceId, Request> asked;
    std::vector<SequenceId> given_up;
    SequenceId oldest = 0;
    for (int i = 0; i < 8; ++i) {
      Request request = RandomAsk(rng);
      const SequenceId id = world.engine->Submit(request).value();
      if (oldest == 0) oldest = id;
      asked[id] = std::move(request);
    }
    while (world.engine->Step().value()) {
      if (rng() % 60 != 0) continue;
      const SequenceId id = oldest + rng() % asked.size();
      world.engine->Cancel(id);
    }
    preemptions += world.engine->preemptions();
    World alone(nullptr);
    for (auto& [id, request] : asked) {
      const auto completion = world.engine->Take(id);
      ASSERT_TRUE(completion);
      if (id == oldest) {
        EXPECT_EQ(completion->preemptions, 0);
      }
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
  EXPECT_GT(preemptions, 4u);
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

}  // namespace
}  // namespace kvcake
