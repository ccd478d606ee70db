#include "engine/sampler.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/hash.h"

namespace kvcake {
namespace {

// Uniform in [0, 1), with 53 random bits.
double Uniform(uint64_t seed, int position) {
  const std::array<uint64_t, 2> input = {seed, static_cast<uint64_t>(position)};
  return static_cast<double>(Xxh3_64(std::as_bytes(std::span(input))) >> 11) * 0x1p-53;
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
  if (!(params.min_p >= 0 && params.min_p <= 1)) {
    return Fail(ErrorCode::kInvalidArgument, "min_p must be from 0 to 1, not {}", params.min_p);
  }
  if (!(params.repetition_penalty > 0) || std::isinf(params.repetition_penalty)) {
    return Fail(ErrorCode::kInvalidArgument, "repetition_penalty must be above 0, not {}",
                params.repetition_penalty);
  }
  if (!std::isfinite(params.presence_penalty) || !std::isfinite(params.frequency_penalty)) {
    return Fail(ErrorCode::kInvalidArgument,
                "presence_penalty and frequency_penalty must be numbers, not {} and {}",
                params.presence_penalty, params.frequency_penalty);
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return Fail(ErrorCode::kInvalidArgument, "top_p must be above 0 and at most 1, not {}",
                params.top_p);
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (!std::isfinite(bias)) {
      return Fail(ErrorCode::kInvalidArgument, "logit_bias of token {} must be a number, not {}",
                  token, bias);
    }
  }
  return {};
}

RowSampling SamplingAt(const SamplingParams& params, int position) {
  return {.temperature = params.temperature,
          .min_p = params.min_p,
          .top_p = params.top_p,
          .uniform = Uniform(params.seed, position),
          .top_k = params.top_k};
}

int32_t Sample(std::span<const float> logits, const SamplingParams& params, int position) {
  return SampleToken(logits, SamplingAt(params, position));
}

void Penalise(const SamplingParams& params, std::span<const int32_t> prompt,
              std::span<const int32_t> answer, std::span<float> logits) {
  const auto known = [&](int32_t token) {
    return token >= 0 && static_cast<size_t>(token) < logits.size();
  };
  if (params.repetition_penalty != 1) {
    std::vector<bool> seen(logits.size());
    const float penalty = static_cast<float>(params.repetition_penalty);
    for (const auto tokens : {prompt, answer}) {
      for (const int32_t token : tokens) {
        if (!known(token) || seen[token]) continue;
        seen[token] = true;
        logits[token] = logits[token] > 0 ? logits[token] / penalty : logits[token] * penalty;
      }
    }
  }
  std::vector<bool> present(params.presence_penalty != 0 ? logits.size() : 0);
  for (const int32_t token : answer) {
    if (!known(token)) continue;
    logits[token] -= static_cast<float>(params.frequency_penalty);
    if (present.empty() || present[token]) continue;
    present[token] = true;
    logits[token] -= static_cast<float>(params.presence_penalty);
  }
}

int32_t Choose(std::span<const float> logits, const SamplingParams& params,
               std::span<const int32_t> tokens, size_t prompt, std::span<const int32_t> banned) {
  const int position = static_cast<int>(tokens.size());
  if (!params.edits_logits() && banned.empty()) return Sample(logits, params, position);
  std::vector<float> edited(logits.begin(), logits.end());
  const auto known = [&](int32_t token) {
    return token >= 0 && static_cast<size_t>(token) < edited.size();
  };
  for (const auto& [token, bias] : params.logit_bias) {
    if (known(token)) edited[token] += bias;
  }
  if (params.penalises()) {
    Penalise(params, tokens.first(prompt), tokens.subspan(prompt), edited);
  }
  for (const int32_t token : banned) {
    if (known(token)) edited[token] = std::numeric_limits<float>::quiet_NaN();  // never chosen
  }
  return Sample(edited, params, position);
}

}  // namespace kvcake
