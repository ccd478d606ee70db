#include "codec/kvquant_tables.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace kvcake {
namespace {

constexpr float kMost = 0x1p60f;  // of any number, so that their products stay finite

// The next numbers of a body; false where one is too large, or none.
bool Read(std::span<const std::byte>* body, std::span<float> to) {
  const auto bytes = std::as_writable_bytes(to);
  std::copy_n(body->begin(), bytes.size(), bytes.begin());
  *body = body->subspan(bytes.size());
  return std::all_of(to.begin(), to.end(), [](float x) { return std::abs(x) < kMost; });
}

}  // namespace

std::vector<std::byte> KvQuantBody(const KvQuantTables& tables) {
  std::vector<std::byte> body;
  const auto append = [&](std::span<const float> numbers) {
    const auto bytes = std::as_bytes(numbers);
    body.insert(body.end(), bytes.begin(), bytes.end());
  };
  append(tables.inverse_frequencies);
  for (const KvQuantLayer& layer : tables.layers) {
    append(layer.key_offsets);
    append(layer.key_scales);
    for (const auto& centroids : layer.centroids) append(centroids);
  }
  return body;
}

Result<KvQuantTables> ParseKvQuant(const CodecTables& tables) {
  const auto bad = [](const char* why) {
    return Fail(ErrorCode::kCorrupt, "tables of codec kvquant3: {}", why);
  };
  constexpr const char* kWild = "a number is too large, or none";
  const size_t channels = static_cast<size_t>(tables.kv_heads) * tables.head_dim;
  const size_t of_layer = 2 * channels + 2 * kKvQuantCentroids;
  const size_t floats = tables.head_dim / 2 + tables.layers * of_layer;
  if (tables.body.size() != floats * sizeof(float)) return bad("their length is another");
  std::span<const std::byte> body = tables.body;
  KvQuantTables parsed;
  parsed.inverse_frequencies.resize(tables.head_dim / 2);
  if (!Read(&body, parsed.inverse_frequencies)) return bad(kWild);
  for (int i = 0; i < tables.layers; ++i) {
    KvQuantLayer& layer = parsed.layers.emplace_back();
    layer.key_offsets.resize(channels);
    layer.key_scales.resize(channels);
    if (!Read(&body, layer.key_offsets) || !Read(&body, layer.key_scales)) return bad(kWild);
    for (const float scale : layer.key_scales) {
      if (scale <= 0) return bad("a scale is not more than 0");
    }
    for (auto& centroids : layer.centroids) {
      if (!Read(&body, centroids)) return bad(kWild);
      if (!std::is_sorted(centroids.begin(), centroids.end())) {
        return bad("centroids are not in order");
      }
    }
  }
  return parsed;
}

}  // namespace kvcake
