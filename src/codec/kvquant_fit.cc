// The tables of `kvquant3`, fitted to some of a model's caches.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/bf16.h"
#include "base/check.h"
#include "codec/kvquant.h"
#include "codec/kvquant_rotation.h"
#include "codec/kvquant_tables.h"

namespace kvcake {
namespace {

constexpr int kIterationsMax = 200;
constexpr size_t kPointsMax = 2 << 20;  // of one fit: more say no more
constexpr double kOutlierShare = 0.01;
constexpr float kScaleLeast = 1e-20f;  // of a channel that never changes

// A number in units of its scale, which is a squared error's weight.
struct Point {
  float at, scale;
};

// Lloyd's algorithm on points in order: a centroid's points are a range of them.
class Centroids {
 public:
  explicit Centroids(const std::vector<Point>& points) : points_(points) {
    weights_.push_back(0);
    sums_.push_back(0);
    for (const Point& point : points) {
      const double weight = static_cast<double>(point.scale) * point.scale;
      weights_.push_back(weights_.back() + weight);
      sums_.push_back(sums_.back() + weight * point.at);
    }
    for (int i = 0; i < kKvQuantCentroids; ++i) {
      of_[i] = points[points.size() * (2 * i + 1) / (2 * kKvQuantCentroids)].at;
    }
  }

  std::array<float, kKvQuantCentroids> Fit() {
    for (int i = 0; i < kIterationsMax; ++i) {
      const auto before = of_;
      Move();
      if (of_ == before) break;
    }
    return of_;
  }

 private:
  void Move() {
    size_t begin = 0;
    const auto old = of_;
    for (int i = 0; i < kKvQuantCentroids; ++i) {
      size_t end = points_.size();
      if (i + 1 < kKvQuantCentroids) {
        const float between = (old[i] + old[i + 1]) * 0.5f;
        end = std::upper_bound(points_.begin(), points_.end(), between,
                               [](float at, const Point& point) { return at < point.at; }) -
              points_.begin();
      }
      const double weight = weights_[end] - weights_[begin];
      if (weight > 0) of_[i] = static_cast<float>((sums_[end] - sums_[begin]) / weight);
      begin = end;
    }
    std::sort(of_.begin(), of_.end());
  }

  const std::vector<Point>& points_;
  std::vector<double> weights_, sums_;  // of the points before each
  std::array<float, kKvQuantCentroids> of_ = {};
};

// Centroids for all points but those that will be outliers: the ones with the largest errors by
// centroids for all.
std::array<float, kKvQuantCentroids> FitCentroids(std::vector<Point> points) {
  std::sort(points.begin(), points.end(),
            [](const Point& a, const Point& b) { return a.at < b.at; });
  const auto rough = Centroids(points).Fit();
  std::vector<float> errors;
  for (const Point& point : points) {
    float least = INFINITY;
    for (const float centroid : rough) least = std::min(least, std::abs(point.at - centroid));
    errors.push_back(least * point.scale);
  }
  std::vector<float> sorted = errors;
  const auto limit = sorted.begin() +
                     static_cast<int64_t>(static_cast<double>(sorted.size()) * (1 - kOutlierShare));
  if (limit == sorted.end()) return rough;
  std::nth_element(sorted.begin(), limit, sorted.end());
  std::vector<Point> kept;
  for (size_t i = 0; i < points.size(); ++i) {
    if (errors[i] <= *limit) kept.push_back(points[i]);
  }
  return Centroids(kept).Fit();
}

class LayerFit {
 public:
  LayerFit(const KvSample& sample, const KvQuantRotation& rotation, int layer)
      : sample_(sample),
        rotation_(rotation),
        layer_(layer),
        heads_(sample.layout.kv_heads),
        tokens_(sample.layout.chunk_tokens),
        channels_(sample.layout.head_dim),
        stride_(1 + sample.chunks() * sample.layout.plane_elements() / kPointsMax) {}

  KvQuantLayer Fit() {
    KvQuantLayer fit;
    FitKeys(&fit);
    fit.centroids[1] = FitCentroids(ValuePoints());
    return fit;
  }

 private:
  uint64_t ChannelOf(uint64_t i) const {
    return i / (tokens_ * channels_) * channels_ + i % channels_;
  }
  // Those kept as they are, which would draw the others' means to them.
  bool IsFirst(size_t chunk, uint64_t i) const {
    return sample_.positions[chunk] + static_cast<int64_t>(i / channels_ % tokens_) <
           kKvQuantFirstTokens;
  }

  std::vector<float> Keys(size_t chunk) const {
    const auto angles = rotation_.At(sample_.positions[chunk]);
    std::vector<float> numbers(sample_.layout.plane_elements());
    for (uint64_t head = 0; head < heads_; ++head) {
      const uint64_t at = head * tokens_ * channels_;
      UndoRotation(angles, sample_.slab(chunk, layer_).data() + at, tokens_, channels_,
                   numbers.data() + at);
    }
    return numbers;
  }

  void FitKeys(KvQuantLayer* fit) const {
    const uint64_t all = heads_ * channels_;
    std::vector<double> counts(all), sums(all), squares(all);
    for (size_t chunk = 0; chunk < sample_.chunks(); ++chunk) {
      const std::vector<float> keys = Keys(chunk);
      for (uint64_t i = 0; i < keys.size(); ++i) {
        if (IsFirst(chunk, i)) continue;
        const uint64_t channel = ChannelOf(i);
        ++counts[channel];
        sums[channel] += keys[i];
        squares[channel] += static_cast<double>(keys[i]) * keys[i];
      }
    }
    for (uint64_t channel = 0; channel < all; ++channel) {
      const double count = std::max(1.0, counts[channel]), mean = sums[channel] / count;
      const double variance = std::max(0.0, squares[channel] / count - mean * mean);
      fit->key_offsets.push_back(static_cast<float>(mean));
      fit->key_scales.push_back(std::max(kScaleLeast, static_cast<float>(std::sqrt(variance))));
    }
    std::vector<Point> points;
    for (size_t chunk = 0; chunk < sample_.chunks(); ++chunk) {
      const std::vector<float> keys = Keys(chunk);
      for (uint64_t i = chunk % stride_; i < keys.size(); i += stride_) {
        if (IsFirst(chunk, i)) continue;
        const float offset = fit->key_offsets[ChannelOf(i)], scale = fit->key_scales[ChannelOf(i)];
        points.push_back({(keys[i] - offset) / scale, scale});
      }
    }
    if (points.empty()) points.push_back({0, 1});  // nothing but first tokens
    fit->centroids[0] = FitCentroids(std::move(points));
  }

  std::vector<Point> ValuePoints() const {
    std::vector<Point> points;
    const uint64_t plane = sample_.layout.plane_elements();
    for (size_t chunk = 0; chunk < sample_.chunks(); ++chunk) {
      const auto values = sample_.slab(chunk, layer_).subspan(plane, plane);
      std::vector<double> sums(tokens_), squares(tokens_);
      for (uint64_t i = 0; i < plane; ++i) {
        const double value = Bf16ToF32(values[i]);
        sums[i / channels_ % tokens_] += value;
        squares[i / channels_ % tokens_] += value * value;
      }
      const auto count = static_cast<double>(heads_ * channels_);
      for (uint64_t i = chunk % stride_; i < plane; i += stride_) {
        const uint64_t token = i / channels_ % tokens_;
        const double mean = sums[token] / count;
        const auto spread =
            static_cast<float>(std::sqrt(std::max(0.0, squares[token] / count - mean * mean)));
        if (IsFirst(chunk, i) || spread == 0) continue;
        points.push_back({(Bf16ToF32(values[i]) - static_cast<float>(mean)) / spread, spread});
      }
    }
    if (points.empty()) points.push_back({0, 1});
    return points;
  }

  const KvSample& sample_;
  const KvQuantRotation& rotation_;
  const int layer_;
  const uint64_t heads_, tokens_, channels_, stride_;
};

}  // namespace

std::vector<CodecTables> FitKvQuant3(const KvSample& sample) {
  CHECK(sample.chunks() > 0);
  const KvLayout& layout = sample.layout;
  KvQuantTables tables;
  tables.inverse_frequencies = sample.inverse_frequencies;
  tables.inverse_frequencies.resize(layout.head_dim / 2);  // zeros turn nothing
  const KvQuantRotation rotation(tables.inverse_frequencies, layout.chunk_tokens);
  for (int layer = 0; layer < layout.layers; ++layer) {
    tables.layers.push_back(LayerFit(sample, rotation, layer).Fit());
  }
  return {{.codec = Codec::kKvQuant3,
           .level = 1,
           .layers = layout.layers,
           .kv_heads = layout.kv_heads,
           .head_dim = layout.head_dim,
           .body = KvQuantBody(tables)}};
}

}  // namespace kvcake
