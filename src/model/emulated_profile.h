// How long a model takes on a machine that is not here, as measured or published: what
// EmulatedModel waits for.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"
#include "kv/slice_time.h"

namespace kvcake {

struct EmulatedProfile {
  using Attention = SliceTime::Attention;

  std::string name;
  int layers = 0;
  uint64_t kv_bytes_per_token = 0;
  int max_positions = 0;
  Attention attention = Attention::kCausal;
  double c0 = 0, g = 0, b = 0, a = 0, floor = 0;  // of its SliceTime
  double link_latency_s = 0;                      // of a message between ranks on such machines

  SliceTime time() const { return {attention, c0, g, b, a, floor}; }
  // As SliceTime has them.
  double SecondsFor(double prefix, double tokens) const {
    return time().SecondsFor(prefix, tokens);
  }
  double MarginalSecondsFor(double prefix, double tokens) const {
    return time().MarginalSecondsFor(prefix, tokens);
  }
};

// kNotFound, or kInvalidArgument naming the file and the field.
Result<EmulatedProfile> LoadEmulatedProfile(const std::string& path);
// `source` names the text in errors.
Result<EmulatedProfile> ParseEmulatedProfile(const nlohmann::json& json, const std::string& source);

}  // namespace kvcake
