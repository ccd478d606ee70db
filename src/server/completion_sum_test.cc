#include "server/completion_sum.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

Completion Answered(int prompt, int reused, int loaded, std::vector<int32_t> tokens) {
  Completion completion{.tokens = std::move(tokens), .finish_reason = FinishReason::kStop};
  completion.report.prompt_tokens = prompt;
  completion.report.tokens_reused = reused;
  completion.report.tokens_computed = prompt - reused - loaded;
  if (loaded > 0) completion.report.tokens_loaded["disk"] = loaded;
  return completion;
}

TEST(CompletionSumTest, OneIsLeftAsItIs) {
  const Completion one = Answered(128, 128, 0, {1, 2});
  EXPECT_EQ(CachedTokens(one), 127);
  const Completion sum = SumOf({&one, 1}, 1);
  EXPECT_EQ(sum.report.tokens_reused, 128);
  EXPECT_EQ(sum.tokens, one.tokens);
}

TEST(CompletionSumTest, PromptsCountOnceAndAnswersAll) {
  std::vector<Completion> all = {Answered(300, 256, 0, {1}), Answered(300, 0, 128, {2, 3}),
                                 Answered(128, 128, 0, {4}), Answered(128, 128, 0, {})};
  all[1].ttft_s = 2;
  all[2].decode_s = 3;
  Completion sum = SumOf(all, 2);
  EXPECT_EQ(sum.report.prompt_tokens, 428);
  EXPECT_EQ(sum.tokens, (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(CachedTokens(sum), 128 + 127);  // as the second computed it, and all but a last token
  EXPECT_EQ(sum.report.tokens_loaded.at("disk"), 128);
  EXPECT_EQ(sum.ttft_s, 2);
  EXPECT_EQ(sum.decode_s, 3);
  EXPECT_EQ(sum.finish_reason, FinishReason::kStop);
  EXPECT_EQ(SumOf(all, 1).report.prompt_tokens, 856);
  all[1].finish_reason = FinishReason::kLength;
  all[2].finish_reason = FinishReason::kError;
  all[2].error = "no pages";
  sum = SumOf(all, 2);
  EXPECT_EQ(sum.finish_reason, FinishReason::kError);
  EXPECT_EQ(sum.error, "no pages");
}

// One token of each prompt is computed again, whether it was in memory or loaded.
TEST(CompletionSumTest, PromptsThatWereThereInPartsLackOneTokenEach) {
  const std::vector<Completion> all = {Answered(256, 128, 128, {1}), Answered(256, 128, 128, {2})};
  EXPECT_EQ(CachedTokens(SumOf(all, 1)), 255 + 255);
}

TEST(CompletionSumTest, WhatIsCountedAddsUpAndTimesAreTheLongest) {
  std::vector<Completion> all = {Answered(300, 128, 0, {1}), Answered(300, 128, 0, {2}),
                                 Answered(200, 0, 0, {3})};
  for (size_t i = 0; i < all.size(); ++i) {
    const int n = 1 << i;
    all[i].report.chunks_failed = n;
    all[i].preemptions = 10 * n;
    for (const auto time : {&Completion::queue_s, &Completion::restore_s, &Completion::ttft_s,
                            &Completion::decode_s, &Completion::steps_s}) {
      all[i].*time = 0.5;
    }
  }
  all[0].queue_s = 1;
  all[1].restore_s = 2;
  all[2].ttft_s = 3;
  all[0].decode_s = 4;
  all[1].steps_s = 5;
  const Completion sum = SumOf(all, 1);
  EXPECT_EQ(sum.report.tokens_computed, 172 + 172 + 200);
  EXPECT_EQ(sum.report.chunks_failed, 1 + 2 + 4);
  EXPECT_EQ(sum.preemptions, 10 + 20 + 40);
  EXPECT_EQ(sum.queue_s, 1);
  EXPECT_EQ(sum.restore_s, 2);
  EXPECT_EQ(sum.ttft_s, 3);
  EXPECT_EQ(sum.decode_s, 4);
  EXPECT_EQ(sum.steps_s, 5);
}

TEST(CompletionSumTest, TheWorstEndIsTheSums) {
  std::vector<Completion> all(3);
  const auto end_of = [&](FinishReason one, FinishReason two, FinishReason three) {
    all[0].finish_reason = one;
    all[1].finish_reason = two;
    all[2].finish_reason = three;
    return SumOf(all, 1).finish_reason;
  };
  using enum FinishReason;
  EXPECT_EQ(end_of(kStop, kStop, kStop), kStop);
  EXPECT_EQ(end_of(kStop, kLength, kStop), kLength);
  EXPECT_EQ(end_of(kLength, kCancelled, kStop), kCancelled);
  EXPECT_EQ(end_of(kCancelled, kLength, kError), kError);
}

TEST(CompletionSumTest, APromptThatWasLoadedToItsLastTokenHasNoneReused) {
  const std::vector<Completion> all = {Answered(128, 0, 128, {1}), Answered(256, 0, 256, {2})};
  const Completion sum = SumOf(all, 1);
  EXPECT_EQ(sum.report.tokens_reused, 0);
  EXPECT_EQ(sum.report.tokens_loaded.at("disk"), 127 + 255);
  EXPECT_EQ(CachedTokens(sum), 127 + 255);
}

TEST(CompletionSumTest, SaysWhichChainHasPrefilledThePrompt) {
  std::vector<Completion> all = {Answered(300, 0, 0, {1}), Answered(300, 256, 0, {2})};
  EXPECT_FALSE(SumOf(all, 2).chain);
  all[0].chain.emplace().ranks.resize(3);
  const Completion sum = SumOf(all, 2);
  ASSERT_TRUE(sum.chain);
  EXPECT_EQ(sum.chain->ranks.size(), 3u);
}

TEST(CompletionSumTest, SaysThatChunksHaveGoneThroughALossyCodec) {
  std::vector<Completion> all = {Answered(300, 256, 0, {1}), Answered(300, 256, 0, {2})};
  for (Completion& one : all) one.report.lossy = "int8";
  EXPECT_EQ(SumOf(all, 2).report.lossy, "int8");
  all[1].report.lossy = "";  // it failed before it was restored
  EXPECT_EQ(SumOf(all, 1).report.lossy, "int8");
}

}  // namespace
}  // namespace kvcake
