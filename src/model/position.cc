#include "model/position.h"

#include <bit>
#include <cmath>
#include <numbers>

namespace kvcake {

std::vector<float> RopeInverseFrequencies(const RopeConfig& rope, int head_dim) {
  std::vector<float> inv_freq(head_dim / 2);
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
