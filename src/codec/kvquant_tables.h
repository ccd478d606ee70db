// The tables of `kvquant3`: what docs/format.md calls their body, and back.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "codec/codec_tables.h"

namespace kvcake {

constexpr int kKvQuantCentroids = 8;
constexpr int64_t kKvQuantFirstTokens = 4;  // of a prompt, which are kept as they are

struct KvQuantLayer {
  // A key is offset + scale * centroid, of its channel: [kv_head][channel]. A value has its
  // token's.
  std::vector<float> key_offsets, key_scales;
  // Those of keys, then of values, each in order.
  std::array<std::array<float, kKvQuantCentroids>, 2> centroids = {};
};

struct KvQuantTables {
  std::vector<float> inverse_frequencies;  // KvSample's
  std::vector<KvQuantLayer> layers;
};

std::vector<std::byte> KvQuantBody(const KvQuantTables& tables);
// kCorrupt unless the body is one for tables of such a header.
Result<KvQuantTables> ParseKvQuant(const CodecTables& tables);

}  // namespace kvcake
