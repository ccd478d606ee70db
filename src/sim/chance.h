// What varies in a simulation, by its seed.
#pragma once

#include <random>

namespace kvcake {

// 1, give or take up to this share.
inline double Vary(std::mt19937_64& rng, double share) {
  return share > 0 ? 1 + std::uniform_real_distribution<double>(-share, share)(rng) : 1;
}

inline bool Happens(std::mt19937_64& rng, double share) {
  return share > 0 && std::uniform_real_distribution<double>(0, 1)(rng) < share;
}

}  // namespace kvcake
