#include "engine/token_score.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace kvcake {
namespace {

constexpr size_t kLanes = 16;  // sums side by side, for the compiler to vectorise

// e^x for x <= 0, to 2e-7 of it; 0 where that is less than 1e-37. No calls and no branches.
inline float ExpOfNegative(float x) {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693145752f, kLn2Low = 1.42860677e-6f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = x > -87.0f ? x : -87.0f;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) << 23;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + exponent);
}

float Largest(std::span<const float> logits) {
  std::array<float, kLanes> best;
  best.fill(logits[0]);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      best[lane] = logits[i + lane] > best[lane] ? logits[i + lane] : best[lane];
    }
  }
  for (; i < logits.size(); ++i) best[0] = std::max(best[0], logits[i]);
  return *std::max_element(best.begin(), best.end());
}

// What to subtract from a logit.
double LogTotal(std::span<const float> logits) {
  constexpr size_t kBlock = 256 * kLanes;  // floats keep their digits for so long
  const float best = Largest(logits);
  double total = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    std::array<float, kLanes> sums = {};
    size_t i = 0;
    for (; i + kLanes <= block.size(); i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        sums[lane] += ExpOfNegative(block[i + lane] - best);
      }
    }
    for (; i < block.size(); ++i) sums[0] += ExpOfNegative(block[i] - best);
    for (const float sum : sums) total += sum;
  }
  return best + std::log(total);
}

// The likeliest in order, each with its logit.
std::vector<TokenLogprob> Likeliest(std::span<const float> logits, size_t count) {
  std::vector<TokenLogprob> top;
  top.reserve(count + 1);
  for (size_t i = 0; i < logits.size() && count > 0; ++i) {
    const float logit = logits[i];
    const bool full = top.size() == count;
    if (std::isnan(logit) || (full && logit <= top.back().logprob)) continue;
    const auto after = std::upper_bound(top.begin(), top.end(), logit,
                                        [](float a, const auto& b) { return a > b.logprob; });
    top.insert(after, {static_cast<int32_t>(i), logit});
    if (full) top.pop_back();
  }
  return top;
}

}  // namespace

TokenScore ScoreToken(std::span<const float> logits, int32_t token, int count) {
  const double total = LogTotal(logits);
  const size_t kept = std::min(static_cast<size_t>(std::max(count, 0)), logits.size());
  TokenScore score{.logprob = static_cast<float>(logits[token] - total),
                   .top = Likeliest(logits, kept)};
  for (TokenLogprob& one : score.top) one.logprob = static_cast<float>(one.logprob - total);
  return score;
}

}  // namespace kvcake
