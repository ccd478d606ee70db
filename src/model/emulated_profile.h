// How long a model takes on a machine that is not here, as measured or published: what
// EmulatedModel waits for.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"

namespace kvcake {

struct EmulatedProfile {
  // kCausal: t = c0 + g L + b x + a (2 L x + x^2) seconds for x new tokens after L.
  // kDense: t = max(floor, c0 + b x + a x (L + x)): every score, then a mask, as the papers' GPUs
  // computed it.
  enum class Attention { kCausal, kDense };

  std::string name;
  int layers = 0;
  uint64_t kv_bytes_per_token = 0;
  int max_positions = 0;
  Attention attention = Attention::kCausal;
  double c0 = 0, g = 0, b = 0, a = 0, floor = 0;

  // A step that computes these tokens alone.
  double SecondsFor(double prefix, double tokens) const;
  // What they add to a step that others pay c0 for.
  double MarginalSecondsFor(double prefix, double tokens) const;
};

// kNotFound, or kInvalidArgument naming the file and the field.
Result<EmulatedProfile> LoadEmulatedProfile(const std::string& path);
// `source` names the text in errors.
Result<EmulatedProfile> ParseEmulatedProfile(const nlohmann::json& json, const std::string& source);

}  // namespace kvcake
