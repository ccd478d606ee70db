// Slabs like those of a model, and tables fitted to them, for tests of codecs.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "codec/codec.h"

namespace kvcake {

// Normal numbers; each channel of the keys has a mean and a spread of its own, as those of a model
// do. The same for the same seed.
inline std::vector<uint16_t> NaturalSlab(const KvLayout& layout, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> slab;
  slab.reserve(2 * layout.plane_elements());
  for (int head = 0; head < layout.kv_heads; ++head) {
    std::vector<float> mean(layout.head_dim), spread(layout.head_dim);
    for (float& m : mean) m = 2 * normal(rng);
    for (float& s : spread) s = std::exp(normal(rng));
    for (int token = 0; token < layout.chunk_tokens; ++token) {
      for (int c = 0; c < layout.head_dim; ++c) {
        slab.push_back(NumberToBf16(mean[c] + spread[c] * normal(rng)));
      }
    }
  }
  for (uint64_t i = 0; i < layout.plane_elements(); ++i) {
    slab.push_back(NumberToBf16(0.1f * normal(rng)));
  }
  return slab;
}

// Any bits, infinities and NaNs among them.
inline std::vector<uint16_t> AnySlab(const KvLayout& layout, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<uint16_t> slab(2 * layout.plane_elements());
  for (uint16_t& value : slab) value = static_cast<uint16_t>(rng());
  return slab;
}

// The default tables of a codec that has some, fitted to natural slabs.
inline std::optional<CodecTables> NaturalTables(const CodecRow& row, const KvLayout& layout) {
  if (row.fit == nullptr) return {};
  constexpr int kChunks = 2;
  std::vector<std::vector<uint16_t>> slabs;
  for (int i = 0; i < kChunks * layout.layers; ++i) slabs.push_back(NaturalSlab(layout, 100 + i));
  KvSample sample{.layout = layout, .positions = {}, .inverse_frequencies = {}, .slab = {}};
  for (int i = 0; i < kChunks; ++i) sample.positions.push_back(int64_t{i} * layout.chunk_tokens);
  for (int i = 0; i < layout.head_dim / 2; ++i) {
    sample.inverse_frequencies.push_back(std::pow(10000.f, -2.f * i / layout.head_dim));
  }
  sample.slab = [&](size_t chunk, int layer) -> std::span<const uint16_t> {
    return slabs[chunk * layout.layers + layer];
  };
  return row.fit(sample)[0];
}

}  // namespace kvcake
