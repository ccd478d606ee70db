#include "engine/token_score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace kvcake {
namespace {

// In plain doubles, everything sorted.
TokenScore Reference(const std::vector<float>& logits, int32_t token, int count) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - best);
  const double total = best + std::log(sum);
  std::vector<TokenLogprob> all;
  for (size_t i = 0; i < logits.size(); ++i) {
    all.push_back({static_cast<int32_t>(i), static_cast<float>(logits[i] - total)});
  }
  std::stable_sort(all.begin(), all.end(),
                   [&](const auto& a, const auto& b) { return logits[a.token] > logits[b.token]; });
  all.resize(std::min<size_t>(count, all.size()));
  return {.logprob = static_cast<float>(logits[token] - total), .top = all};
}

TEST(TokenScoreTest, IsWhatAPlainReferenceSays) {
  std::mt19937 rng(1);
  for (int round = 0; round < 300; ++round) {
    const size_t vocab = 1 + rng() % 9000;
    std::normal_distribution<float> logit(0, static_cast<float>(0.1 + rng() % 40));
    std::vector<float> logits(vocab);
    for (float& l : logits) l = std::round(logit(rng) * 8) / 8;  // with equals among them
    const auto token = static_cast<int32_t>(rng() % vocab);
    const int count = static_cast<int>(rng() % 22);
    const TokenScore expected = Reference(logits, token, count);
    const TokenScore score = ScoreToken(logits, token, count);
    EXPECT_NEAR(score.logprob, expected.logprob, 1e-5 * std::max(1.0f, -expected.logprob));
    ASSERT_EQ(score.top.size(), expected.top.size());
    for (size_t i = 0; i < score.top.size(); ++i) {
      EXPECT_EQ(score.top[i].token, expected.top[i].token);
      EXPECT_NEAR(score.top[i].logprob, expected.top[i].logprob, 1e-4);
    }
  }
}

TEST(TokenScoreTest, KnownWeights) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(4.0f), std::log(1.0f),
                                     std::log(8.0f)};
  EXPECT_NEAR(ScoreToken(logits, 4, 0).logprob, std::log(0.5), 1e-6);
  EXPECT_NEAR(ScoreToken(logits, 0, 0).logprob, std::log(1.0 / 16), 1e-6);
  EXPECT_TRUE(ScoreToken(logits, 0, 0).top.empty());
  const auto top = ScoreToken(logits, 0, 5).top;
  EXPECT_EQ(top.back().token, 3) << "the last of equals";
  EXPECT_EQ(ScoreToken(logits, 0, 20).top.size(), logits.size());
}

// The sums go by sixteen, and few vocabularies do.
TEST(TokenScoreTest, TheLargestMayBeTheLast) {
  for (const size_t vocab : {17u, 33u, 4097u}) {
    std::vector<float> logits(vocab);
    logits.back() = 500;
    EXPECT_EQ(ScoreToken(logits, static_cast<int32_t>(vocab) - 1, 0).logprob, 0) << vocab;
    EXPECT_EQ(ScoreToken(logits, 0, 0).logprob, -500) << vocab;
  }
}

TEST(TokenScoreTest, FarApartAndNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  EXPECT_NEAR(ScoreToken(std::vector<float>{1e30f, -1e30f, 0}, 0, 1).logprob, 0, 1e-6);
  EXPECT_NEAR(ScoreToken(std::vector<float>{5, -infinite}, 0, 1).logprob, 0, 1e-6);
  const auto top = ScoreToken(std::vector<float>{nan, 1, nan, 2}, 1, 4).top;
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[0].token, 3);
  EXPECT_EQ(top[1].token, 1);
}

}  // namespace
}  // namespace kvcake
