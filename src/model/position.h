// What positions do to attention, as Hugging Face transformers computes it.
#pragma once

#include <vector>

#include "model/config.h"

namespace kvcake {

// The rotation speed of each pair of a head's dimensions, [head_dim / 2]. What yarn multiplies
// cosines and sines by besides is rope.attention_factor.
std::vector<float> RopeInverseFrequencies(const RopeConfig& rope, int head_dim);

// How fast the scores of each head grow with the key's position, [heads]: Falcon's ALiBi.
std::vector<float> AlibiSlopes(int heads);

}  // namespace kvcake
