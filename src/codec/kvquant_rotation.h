// RoPE of a chunk's keys, and its inverse, for `kvquant3`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvcake {

class KvQuantRotation {
 public:
  // Turns chunks of so many tokens, and heads of twice as many channels as there are frequencies
  // (radians a token); a last odd channel is not turned.
  KvQuantRotation(std::span<const float> inverse_frequencies, uint64_t tokens);

  // Cosines and sines of a chunk whose first token is at `position`.
  struct Angles {
    std::vector<float> cosines, sines;  // [token][frequency]
  };
  Angles At(int64_t position) const;

 private:
  const std::vector<float> inverse_frequencies_;
  const uint64_t tokens_;
  std::vector<double> cosines_, sines_;  // [token][frequency], from the first token on
};

// Turns a head's keys back, in f32: [token][channels].
void UndoRotation(const KvQuantRotation::Angles& angles, const uint16_t* keys, uint64_t tokens,
                  uint64_t channels, float* numbers);

}  // namespace kvcake
