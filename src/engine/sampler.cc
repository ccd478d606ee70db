#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/hash.h"

namespace kvcake {
namespace {

int32_t ArgMax(std::span<const float> logits) {
  int32_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) continue;
    if (best < 0 || logits[i] > logits[best]) best = static_cast<int32_t>(i);
  }
  return std::max(best, 0);
}

// Uniform in [0, 1), with 53 random bits.
double Uniform(uint64_t seed, int position) {
  const std::array<uint64_t, 2> input = {seed, static_cast<uint64_t>(position)};
  return static_cast<double>(Xxh3_64(std::as_bytes(std::span(input))) >> 11) * 0x1p-53;
}

struct Candidate {
  int32_t token;
  double weight;
};

// The candidates that top_k leaves, likeliest first, ties by id so that order is reproducible; all,
// in the order of their ids, when nothing is to be cut.
std::vector<Candidate> Candidates(std::span<const float> logits, const SamplingParams& params) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) candidates.push_back({static_cast<int32_t>(i), logits[i]});
  }
  if (params.top_k == 0 && params.top_p == 1) return candidates;
  const size_t keep =
      params.top_k > 0 ? std::min<size_t>(params.top_k, candidates.size()) : candidates.size();
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  };
  std::partial_sort(candidates.begin(), candidates.begin() + keep, candidates.end(), likelier);
  candidates.resize(keep);
  return candidates;
}

}  // namespace

Status Validate(const SamplingParams& params) {
  if (!(params.temperature >= 0) || std::isinf(params.temperature)) {
    return Fail(ErrorCode::kInvalidArgument, "temperature must be 0 (greedy) or more, not {}",
                params.temperature);
  }
  if (params.top_k < 0) {
    return Fail(ErrorCode::kInvalidArgument, "top_k must be 0 (all tokens) or more, not {}",
                params.top_k);
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return Fail(ErrorCode::kInvalidArgument, "top_p must be above 0 and at most 1, not {}",
                params.top_p);
  }
  return {};
}

int32_t Sample(std::span<const float> logits, const SamplingParams& params, int position) {
  if (params.temperature == 0) return ArgMax(logits);
  std::vector<Candidate> candidates = Candidates(logits, params);
  const int32_t likeliest = ArgMax(logits);
  const double best = logits[likeliest];
  if (candidates.empty() || !std::isfinite(best)) return likeliest;

  double total = 0;
  for (Candidate& c : candidates) {
    c.weight = std::exp((c.weight - best) / params.temperature);
    total += c.weight;
  }
  // The smallest set of likeliest tokens whose probability reaches top_p.
  size_t kept = 0;
  double kept_weight = 0;
  while (kept < candidates.size() && (kept == 0 || kept_weight < params.top_p * total)) {
    kept_weight += candidates[kept++].weight;
  }
  double left = Uniform(params.seed, position) * kept_weight;
  for (size_t i = 0; i < kept; ++i) {
    left -= candidates[i].weight;
    if (left < 0) return candidates[i].token;
  }
  return candidates[kept - 1].token;
}

float LogProbability(std::span<const float> logits, int32_t token) {
  const float best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - best);
  return static_cast<float>(logits[token] - best - std::log(sum));
}

}  // namespace kvcake
