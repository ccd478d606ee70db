// Distributions of the numbers that `cachegen` writes, counted in some of a model's caches.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/bf16.h"
#include "base/check.h"
#include "codec/cachegen.h"
#include "codec/cachegen_tables.h"

namespace kvcake {
namespace {

constexpr int kLevels = 2;
// The largest step seen has this code: a chunk may have steps 16 times as large, and steps
// thousands of times smaller are kept apart.
constexpr int kLargestStepCode = kStepCodes - 1 - 4 * 16;
// As many numbers that nobody counted are spread over a channel as its plane has them.
constexpr double kPriorCount = 24;

// Grades as in the released code: fewer levels for values than for keys, and for later layers.
int MostOf(int level, int layer, int layers, bool keys) {
  if (level == 1) {
    const bool fine = keys ? 2 * layer < layers : 16 * layer < layers;
    return fine ? 15 : 7;
  }
  return keys ? 7 : 6;
}

float Magnitude(uint16_t bf16) { return Bf16ToF32(bf16 & 0x7fff); }

// Shares of the whole as counts of kRansTotal, each at least 1, their sum exact.
void ToCounts(const std::vector<double>& weights, uint16_t* counts) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> over(weights.size());  // what each wants beyond what it has
  uint32_t total = 0;
  for (size_t s = 0; s < weights.size(); ++s) {
    const double wanted = weights[s] / sum * kRansTotal;
    counts[s] = static_cast<uint16_t>(std::max(1.0, std::floor(wanted)));
    over[s] = wanted - counts[s];
    total += counts[s];
  }
  for (; total < kRansTotal; ++total) {
    const size_t s = std::max_element(over.begin(), over.end()) - over.begin();
    ++counts[s];
    over[s] -= 1;
  }
  for (; total > kRansTotal; --total) {
    const size_t s = std::max_element(counts, counts + weights.size()) - counts;
    --counts[s];
  }
}

// K or V of one layer in all chunks.
class PlaneFit {
 public:
  PlaneFit(const KvSample& sample, int layer, int plane, int most)
      : sample_(sample),
        layer_(layer),
        plane_(plane),
        heads_(sample.layout.kv_heads),
        tokens_(sample.layout.chunk_tokens),
        channels_(sample.layout.head_dim),
        symbols_(2 * most + 1) {
    fit_.most = most;
  }

  CacheGenPlane Fit() {
    float largest = 0;
    for (size_t chunk = 0; chunk < sample_.chunks(); ++chunk) {
      for (const uint16_t value : Values(chunk)) largest = std::max(largest, Magnitude(value));
    }
    CHECK(std::isfinite(largest));
    const double first =
        largest / static_cast<double>(fit_.most) / std::exp2(kLargestStepCode / 16.0);
    // All zeros, or numbers near the limits of bf16: any step there is.
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(std::clamp(first, 1e-30, 1e30)));
    fit_.first_step = static_cast<uint16_t>(bits >> 16);
    const uint64_t all = heads_ * channels_;
    std::vector<double> of_channel(all * symbols_), of_plane(symbols_);
    for (size_t chunk = 0; chunk < sample_.chunks(); ++chunk) Count(chunk, &of_channel);
    for (size_t i = 0; i < of_channel.size(); ++i) of_plane[i % symbols_] += of_channel[i];
    const double sum = std::accumulate(of_plane.begin(), of_plane.end(), 0.0);
    fit_.counts.resize(all * symbols_);
    std::vector<double> weights(symbols_);
    for (uint64_t channel = 0; channel < all; ++channel) {
      for (uint64_t s = 0; s < symbols_; ++s) {
        weights[s] = of_channel[channel * symbols_ + s] + kPriorCount * of_plane[s] / sum;
      }
      ToCounts(weights, fit_.counts.data() + channel * symbols_);
    }
    return fit_;
  }

 private:
  std::span<const uint16_t> Values(size_t chunk) const {
    const uint64_t values = sample_.layout.plane_elements();
    return sample_.slab(chunk, layer_).subspan(plane_ * values, values);
  }

  // As the codec quantizes, but with steps as they come.
  void Count(size_t chunk, std::vector<double>* counts) const {
    const std::span<const uint16_t> values = Values(chunk);
    std::vector<float> largest(tokens_);
    for (size_t i = 0; i < values.size(); ++i) {
      float& of_token = largest[i / channels_ % tokens_];
      of_token = std::max(of_token, Magnitude(values[i]));
    }
    const auto most = static_cast<float>(fit_.most);
    for (size_t i = 0; i < values.size(); ++i) {
      const float step = largest[i / channels_ % tokens_] / most;
      const float magnitude = step > 0 ? std::nearbyint(Magnitude(values[i]) / step) : 0;
      const int n = static_cast<int>((values[i] & 0x8000) != 0 ? -magnitude : magnitude);
      const uint64_t channel = i / channels_ / tokens_ * channels_ + i % channels_;
      ++(*counts)[channel * symbols_ + n + fit_.most];
    }
  }

  const KvSample& sample_;
  const int layer_, plane_;
  const uint64_t heads_, tokens_, channels_, symbols_;
  CacheGenPlane fit_;
};

}  // namespace

std::vector<CodecTables> FitCacheGen(const KvSample& sample) {
  CHECK(sample.chunks() > 0);
  const KvLayout& layout = sample.layout;
  std::vector<CodecTables> all;
  for (int level = 1; level <= kLevels; ++level) {
    std::vector<CacheGenPlane> planes;
    for (int layer = 0; layer < layout.layers; ++layer) {
      for (int plane = 0; plane < 2; ++plane) {
        const int most = MostOf(level, layer, layout.layers, /*keys=*/plane == 0);
        planes.push_back(PlaneFit(sample, layer, plane, most).Fit());
      }
    }
    all.push_back({.codec = Codec::kCacheGen,
                   .level = level,
                   .layers = layout.layers,
                   .kv_heads = layout.kv_heads,
                   .head_dim = layout.head_dim,
                   .body = CacheGenBody(planes)});
  }
  return all;
}

}  // namespace kvcake
