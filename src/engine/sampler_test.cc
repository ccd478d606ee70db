#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace kvcake {
namespace {

const std::vector<float> kLogits = {0.0f, std::log(2.0f), std::log(4.0f), std::log(1.0f),
                                    std::log(8.0f)};  // probabilities 1/16 x {1, 2, 4, 1, 8}

std::map<int32_t, double> Shares(const SamplingParams& params) {
  std::map<int32_t, double> shares;
  constexpr int kDraws = 40000;
  for (int position = 0; position < kDraws; ++position) {
    shares[Sample(kLogits, params, position)] += 1.0 / kDraws;
  }
  return shares;
}

TEST(SamplerTest, GreedyTakesTheLowestOfEquals) {
  EXPECT_EQ(Sample(kLogits, {}, 7), 4);
  EXPECT_EQ(Sample(std::vector<float>{1, 3, 3, 2}, {}, 0), 1);
}

TEST(SamplerTest, FollowsTheDistribution) {
  const auto shares = Shares({.temperature = 1, .seed = 3});
  const double expected[] = {1, 2, 4, 1, 8};
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(shares.at(i), expected[i] / 16, 0.01) << i;
}

TEST(SamplerTest, TemperatureSharpens) {
  const auto shares = Shares({.temperature = 0.5, .seed = 3});  // weights squared
  EXPECT_NEAR(shares.at(4), 64.0 / 86, 0.01);
}

TEST(SamplerTest, TopKAndTopPCutTheTail) {
  auto shares = Shares({.temperature = 1, .top_k = 2, .seed = 9});
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares.at(4), 8.0 / 12, 0.01);
  shares = Shares({.temperature = 1, .top_p = 0.6, .seed = 9});  // 8/16 is not enough, 12/16 is
  EXPECT_EQ(shares.size(), 2u);
  shares = Shares({.temperature = 1, .top_p = 0.5, .seed = 9});
  EXPECT_EQ(shares.size(), 1u);
}

TEST(SamplerTest, IsAFunctionOfSeedAndPosition) {
  const SamplingParams a{.temperature = 1, .seed = 1}, b{.temperature = 1, .seed = 2};
  int differs = 0;
  for (int position = 0; position < 100; ++position) {
    EXPECT_EQ(Sample(kLogits, a, position), Sample(kLogits, a, position));
    differs += Sample(kLogits, a, position) != Sample(kLogits, b, position);
  }
  EXPECT_GT(differs, 20);
}

TEST(SamplerTest, NanIsNeverChosen) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Sample(std::vector<float>{nan, 1, nan, 2}, {}, 0), 3);
  EXPECT_EQ(Sample(std::vector<float>{nan, 1, nan, 2}, {.temperature = 1, .top_k = 1}, 0), 3);
  EXPECT_EQ(Sample(std::vector<float>{nan, nan}, {.temperature = 1}, 0), 0);
}

TEST(SamplerTest, RefusesSenselessParameters) {
  EXPECT_TRUE(Validate({}));
  EXPECT_FALSE(Validate({.temperature = -1}));
  EXPECT_FALSE(Validate({.temperature = std::nan("")}));
  EXPECT_FALSE(Validate({.temperature = HUGE_VAL}));
  EXPECT_FALSE(Validate({.top_k = -1}));
  EXPECT_FALSE(Validate({.top_p = 0}));
  EXPECT_FALSE(Validate({.top_p = 1.5}));
  EXPECT_FALSE(Validate({.min_p = -0.1}));
  EXPECT_FALSE(Validate({.min_p = 1.1}));
  EXPECT_FALSE(Validate({.repetition_penalty = 0}));
  EXPECT_FALSE(Validate({.repetition_penalty = HUGE_VAL}));
  EXPECT_FALSE(Validate({.presence_penalty = std::nan("")}));
  EXPECT_FALSE(Validate({.frequency_penalty = HUGE_VAL}));
  EXPECT_FALSE(Validate({.repetition_penalty = std::nan("")}));
  EXPECT_FALSE(Validate({.min_p = std::nan("")}));
  EXPECT_FALSE(Validate({.top_p = std::nan("")}));
  EXPECT_FALSE(Validate({.logit_bias = {{3, std::numeric_limits<float>::infinity()}}}));
}

TEST(SamplerTest, BiasesComeBeforePenaltiesAndBansAfterAll) {
  const std::vector<float> logits = {1, 2, 3, 4};
  const std::vector<int32_t> said = {0, 3};
  const auto choose = [&](const SamplingParams& params, std::vector<int32_t> banned = {}) {
    return Choose(logits, params, said, /*prompt=*/1, banned);
  };
  EXPECT_EQ(choose({}), 3);
  EXPECT_EQ(choose({.logit_bias = {{1, 2.5f}}}), 1);
  EXPECT_EQ(choose({.logit_bias = {{1, 1.5f}}}), 3);
  EXPECT_EQ(choose({.logit_bias = {{3, -100}, {2, -100}}}), 1);
  EXPECT_EQ(choose({.logit_bias = {{-1, 9}, {4, 9}}}), 3);  // no such tokens
  // (4 + 4) / 2 is more than 3, 4 / 2 + 1 is not: biases are penalised, too.
  EXPECT_EQ(choose({.repetition_penalty = 2, .logit_bias = {{3, 4}}}), 3);
  EXPECT_EQ(choose({.repetition_penalty = 2, .logit_bias = {{3, 1}}}), 2);
  // The answer is 3; what the prompt alone holds is not taken for it.
  for (const SamplingParams& params :
       {SamplingParams{.presence_penalty = 1.5}, SamplingParams{.frequency_penalty = 1.5}}) {
    EXPECT_EQ(choose(params), 2);
    EXPECT_EQ(Choose(logits, params, std::vector<int32_t>{3, 0}, /*prompt=*/1), 3);
  }
  EXPECT_EQ(choose({}, {3, 2, 9, -1}), 1);
  EXPECT_EQ(choose({.logit_bias = {{3, 100}}}, {3}), 2);
  for (int position = 0; position < 200; ++position) {
    const std::vector<int32_t> tokens(position, 0);
    const SamplingParams params{.temperature = 5, .seed = 3};
    EXPECT_NE(Choose(logits, params, tokens, 0, said), 3);
    // What is not changed is what there was without.
    EXPECT_EQ(Choose(logits, params, tokens, 0), Sample(logits, params, position));
    SamplingParams edits = params;  // of a token that there is not: each position has its own luck
    edits.logit_bias = {{9, 1}};
    EXPECT_EQ(Choose(logits, edits, tokens, 0), Sample(logits, params, position));
  }
}

// What the sampler promises, said plainly: everything sorted, nothing clever.
int32_t Reference(std::vector<float> logits, const SamplingParams& params,
                  std::span<const int32_t> prompt, std::span<const int32_t> answer,
                  double uniform) {
  for (size_t t = 0; t < logits.size(); ++t) {
    const auto times = [&](std::span<const int32_t> tokens) {
      return std::count(tokens.begin(), tokens.end(), static_cast<int32_t>(t));
    };
    if (times(prompt) + times(answer) > 0) {
      const auto penalty = static_cast<float>(params.repetition_penalty);
      logits[t] = logits[t] > 0 ? logits[t] / penalty : logits[t] * penalty;
    }
    for (int i = 0; i < times(answer); ++i) {
      logits[t] -= static_cast<float>(params.frequency_penalty);
      if (i == 0) logits[t] -= static_cast<float>(params.presence_penalty);
    }
  }
  std::vector<std::pair<double, int32_t>> all;  // minus its weight, token
  const double best = *std::max_element(logits.begin(), logits.end());
  for (size_t t = 0; t < logits.size(); ++t) {
    const double weight = std::exp((logits[t] - best) / params.temperature);
    if (weight >= params.min_p) all.push_back({-weight, static_cast<int32_t>(t)});
  }
  const bool few = params.top_k > 0 && params.top_k < static_cast<int>(all.size());
  if (few || params.top_p < 1) std::sort(all.begin(), all.end());
  if (few) all.resize(params.top_k);
  double total = 0;
  for (const auto& [weight, token] : all) total -= weight;
  if (params.top_p < 1) {
    double sum = 0;
    size_t kept = 0;
    while (kept < all.size() && (kept == 0 || sum < params.top_p * total)) sum -= all[kept++].first;
    all.resize(kept);
    total = sum;
  }
  std::ranges::sort(all, {}, &std::pair<double, int32_t>::second);
  double left = uniform * total;
  for (const auto& [weight, token] : all) {
    left += weight;
    if (left < 0) return token;
  }
  return all.back().second;
}

TEST(SamplerTest, DoesWhatAPlainReferenceDoes) {
  std::mt19937 rng(17);
  const auto below = [&](int n) { return static_cast<int>(rng() % n); };
  int differ = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(1 + below(700));
    for (float& logit : logits) logit = static_cast<float>(below(4000)) / 200 - 10;
    SamplingParams params{.temperature = 0.2 + below(20) / 10.0, .seed = rng()};
    if (below(2)) params.min_p = below(100) / 200.0;
    if (below(2)) params.top_k = below(400);
    if (below(2)) params.top_p = (1 + below(100)) / 100.0;
    if (below(2)) params.repetition_penalty = 0.5 + below(20) / 10.0;
    if (below(2)) params.presence_penalty = below(40) / 10.0 - 2;
    if (below(2)) params.frequency_penalty = below(40) / 10.0 - 2;
    std::vector<int32_t> prompt(below(50)), answer(below(50));
    for (auto* tokens : {&prompt, &answer}) {
      for (int32_t& token : *tokens) token = below(static_cast<int>(logits.size()));
    }
    std::vector<float> penalised = logits;
    Penalise(params, prompt, answer, penalised);
    // The sampler's own randomness, as greedy odds between two tokens would show it.
    const std::vector<float> even(1 << 17, 0.0f);
    const int32_t drawn = Sample(even, {.temperature = 1, .seed = params.seed}, round);
    const double uniform = (drawn + 0.5) / static_cast<double>(even.size());
    const int32_t expected = Reference(logits, params, prompt, answer, uniform);
    differ += Sample(penalised, params, round) != expected;
  }
  EXPECT_LE(differ, 4);  // `uniform` is known to 4 in a million only
}

TEST(SamplerTest, MinPCutsWhatIsFarBelowTheLikeliest) {
  auto shares = Shares({.temperature = 1, .min_p = 0.26, .seed = 4});
  EXPECT_EQ(shares.size(), 2u);  // 8 and 4 of 16; 2 is a quarter of 8
  shares = Shares({.temperature = 1, .min_p = 0.249, .seed = 4});
  EXPECT_EQ(shares.size(), 3u);
  shares = Shares({.temperature = 1, .min_p = 1, .seed = 4});
  EXPECT_EQ(shares.size(), 1u);
}

TEST(SamplerTest, PenaltiesCountWhatWasSaid) {
  std::vector<float> logits = {2, -2, 2, 2, 1};
  Penalise({.repetition_penalty = 2, .presence_penalty = 0.5, .frequency_penalty = 0.25},
           std::vector<int32_t>{0, 1, 0, 99, -1}, std::vector<int32_t>{2, 2, 2, 1}, logits);
  EXPECT_EQ(logits, (std::vector<float>{1, -4 - 0.75f, 1 - 0.5f - 0.75f, 2, 1}));
}

}  // namespace
}  // namespace kvcake
