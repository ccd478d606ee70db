#include "codec/kvquant_rotation.h"

#include <cmath>

#include "base/bf16.h"

namespace kvcake {

KvQuantRotation::KvQuantRotation(std::span<const float> inverse_frequencies, uint64_t tokens)
    : inverse_frequencies_(inverse_frequencies.begin(), inverse_frequencies.end()),
      tokens_(tokens) {
  for (uint64_t token = 0; token < tokens; ++token) {
    for (const float frequency : inverse_frequencies_) {
      const double angle = static_cast<double>(token) * frequency;
      cosines_.push_back(std::cos(angle));
      sines_.push_back(std::sin(angle));
    }
  }
}

// An angle is the first token's and the way from there: a product of complex numbers, where a
// cosine and a sine of each token would take longer than all that is decoded.
KvQuantRotation::Angles KvQuantRotation::At(int64_t position) const {
  const size_t pairs = inverse_frequencies_.size();
  std::vector<double> first_cosines(pairs), first_sines(pairs);
  for (size_t i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(position) * inverse_frequencies_[i];
    first_cosines[i] = std::cos(angle);
    first_sines[i] = std::sin(angle);
  }
  Angles angles{std::vector<float>(cosines_.size()), std::vector<float>(cosines_.size())};
  for (uint64_t token = 0; token < tokens_; ++token) {
    for (size_t i = 0; i < pairs; ++i) {
      const size_t at = token * pairs + i;
      const double cosine = first_cosines[i] * cosines_[at] - first_sines[i] * sines_[at];
      const double sine = first_sines[i] * cosines_[at] + first_cosines[i] * sines_[at];
      angles.cosines[at] = static_cast<float>(cosine);
      angles.sines[at] = static_cast<float>(sine);
    }
  }
  return angles;
}

void UndoRotation(const KvQuantRotation::Angles& angles, const uint16_t* keys, uint64_t tokens,
                  uint64_t channels, float* numbers) {
  const auto widened = [&](uint64_t i) { return Bf16ToF32(keys[i]); };
  const uint64_t half = channels / 2;
  for (uint64_t token = 0; token < tokens; ++token) {
    const uint64_t row = token * channels;
    for (uint64_t c = 0; c < half; ++c) {
      const float x = widened(row + c), y = widened(row + half + c);
      const float cosine = angles.cosines[token * half + c], sine = angles.sines[token * half + c];
      numbers[row + c] = x * cosine + y * sine;
      numbers[row + half + c] = y * cosine - x * sine;
    }
    if (channels % 2 != 0) numbers[row + channels - 1] = widened(row + channels - 1);
  }
}

}  // namespace kvcake
