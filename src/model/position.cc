#include "model/position.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace kvcake {
namespace {

// The pair that turns `turns` times in the original context; it may lie between two.
double PairThatTurns(const RopeConfig& rope, int head_dim, double turns) {
  return head_dim * std::log(rope.original_max_positions / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

// How much of each pair's speed yarn divides by its factor, 0 to 1 (YaRN, section 3.2). Bounds are
// those of Hugging Face transformers, which may be the wrong way round for tiny heads.
std::vector<float> YarnRamp(const RopeConfig& rope, int head_dim) {
  double low = PairThatTurns(rope, head_dim, rope.beta_fast);
  double high = PairThatTurns(rope, head_dim, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  std::vector<float> ramp(head_dim / 2);
  for (int i = 0; i < head_dim / 2; ++i) {
    ramp[i] = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f,
        1.0f);
  }
  return ramp;
}

}  // namespace

std::vector<float> RopeInverseFrequencies(const RopeConfig& rope, int head_dim) {
  std::vector<float> inv_freq(head_dim / 2), ramp;
  if (rope.kind == RopeConfig::Kind::kYarn) ramp = YarnRamp(rope, head_dim);
  for (int i = 0; i < head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    double f = 1.0f / static_cast<float>(std::pow(rope.theta, exponent));
    if (rope.kind == RopeConfig::Kind::kLinear) f /= rope.factor;
    if (rope.kind == RopeConfig::Kind::kLlama3) {
      // Long wavelengths are stretched, short ones kept, those between are blended.
      const double wavelength = 2 * std::numbers::pi / f, old = rope.original_max_positions;
      if (wavelength > old / rope.low_freq_factor) {
        f /= rope.factor;
      } else if (wavelength >= old / rope.high_freq_factor) {
        const double smooth = (old / wavelength - rope.low_freq_factor) /
                              (rope.high_freq_factor - rope.low_freq_factor);
        f = (1 - smooth) * f / rope.factor + smooth * f;
      }
    }
    if (rope.kind == RopeConfig::Kind::kYarn) f = f / rope.factor * ramp[i] + f * (1 - ramp[i]);
    inv_freq[i] = static_cast<float>(f);
  }
  return inv_freq;
}

// A geometric series for as many heads as a power of two; the other heads lie between its values.
std::vector<float> AlibiSlopes(int heads) {
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(heads)));
  const auto base = [](int n) {
    return static_cast<float>(std::exp2(-std::exp2(3 - std::log2(n))));
  };
  std::vector<float> slopes;
  for (int i = 1; i <= power; ++i) slopes.push_back(std::pow(base(power), static_cast<float>(i)));
  for (int i = 1; static_cast<int>(slopes.size()) < heads; i += 2) {
    slopes.push_back(std::pow(base(2 * power), static_cast<float>(i)));
  }
  return slopes;
}

}  // namespace kvcake
