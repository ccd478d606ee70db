#include "codec/kvquant.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/bf16.h"
#include "base/check.h"
#include "codec/kvquant_kernels.h"
#include "codec/kvquant_rotation.h"
#include "codec/kvquant_tables.h"

namespace kvcake {
namespace {

// A part, everything from a multiple of 64 on: of V's tokens the offsets, then the scales; of K,
// then of V the outliers' indexes, then their values; the codes of K, then of V; where a prompt
// begins, its first tokens. Its length depends on the layout and the position only.
constexpr uint64_t kBlockValues = 65536;  // whose outliers have indexes of 16 bits
constexpr uint64_t kValuesPerOutlier = 100;

// Below 2^126 in a part, and below 2^125 in a slab, of which keys that are turned may become sqrt 2
// times as large.
bool IsKept(uint16_t bf16) { return (bf16 & 0x7f80) < 0x7e80; }
bool IsEncoded(uint16_t bf16) { return (bf16 & 0x7f80) < 0x7e00; }

uint16_t Get16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
void Put16(uint8_t* to, uint16_t value) { std::memcpy(to, &value, sizeof(value)); }

// K or V of a chunk while it is encoded.
struct PlaneCodes {
  std::vector<uint8_t> codes;  // [kv_head][token][channel]
  std::vector<float> errors;   // the same; 0 for tokens that are kept as they are
};

class KvQuantCodec : public LayerCodec {
 public:
  KvQuantCodec(const KvLayout& layout, KvQuantTables tables, CodecIsa isa)
      : heads_(layout.kv_heads),
        tokens_(layout.chunk_tokens),
        channels_(layout.head_dim),
        outliers_(OutliersOf(plane_values())),
        rotation_(tables.inverse_frequencies, tokens_),
        layers_(std::move(tables.layers)),
        kernels_(KvQuantKernelsFor(isa)) {}

  uint64_t part_bytes_max() const override { return PartBytes({.layer = 0, .position = 0}); }

  Result<uint64_t> Encode(const SlabPlace& place, std::span<const uint16_t> slab,
                          std::span<std::byte> part) const override {
    CHECK(slab.size() == 2 * plane_values() && part.size() >= part_bytes_max());
    if (!std::all_of(slab.begin(), slab.end(), IsEncoded)) {
      return Fail(ErrorCode::kUnsupported,
                  "codec kvquant3 keeps no numbers of 2^125 or more, and no NaN");
    }
    const KvQuantLayer& layer = LayerOf(place);
    std::memset(part.data(), 0, PartBytes(place));
    auto* const out = reinterpret_cast<uint8_t*>(part.data());
    std::vector<float> numbers = UnturnedKeys(place, slab.data());
    EncodePlane(0, numbers, QuantizeKeys(layer, place, numbers), out);
    std::transform(slab.begin() + static_cast<int64_t>(plane_values()), slab.end(), numbers.begin(),
                   Bf16ToF32);
    EncodePlane(1, numbers, QuantizeValues(layer, place, numbers, out), out);
    ForFirstTokens(place, [&](uint64_t in_slab, uint64_t in_part) {
      std::memcpy(out + in_part, slab.data() + in_slab, channels_ * sizeof(uint16_t));
    });
    return PartBytes(place);
  }

  Status Decode(const SlabPlace& place, std::span<const std::byte> part,
                std::span<uint16_t> slab) const override {
    CHECK(slab.size() == 2 * plane_values());
    if (part.size() != PartBytes(place)) {
      return Fail(ErrorCode::kCorrupt, "a part of codec kvquant3 has {} bytes, must have {}",
                  part.size(), PartBytes(place));
    }
    const auto* const in = reinterpret_cast<const uint8_t*>(part.data());
    if (!NumbersAreKept(in, 2 * tokens_)) return Corrupt("a scale is not finite");
    for (uint64_t plane = 0; plane < 2; ++plane) {
      RETURN_IF_ERROR(CheckOutliers(in + OutliersAt(plane)));
    }
    DecodeKeys(place, in, slab.data());
    DecodeValues(LayerOf(place), in, slab.data() + plane_values());
    bool kept = true;
    ForFirstTokens(place, [&](uint64_t in_slab, uint64_t in_part) {
      kept &= NumbersAreKept(in + in_part, channels_);
      std::memcpy(slab.data() + in_slab, in + in_part, channels_ * sizeof(uint16_t));
    });
    return kept ? Status() : Corrupt("a first token is not finite");
  }

 private:
  static tl::unexpected<Error> Corrupt(const char* why) {
    return Fail(ErrorCode::kCorrupt, "a part of codec kvquant3: {}", why);
  }
  static uint64_t OutliersOf(uint64_t values) {
    return values / kBlockValues * (kBlockValues / kValuesPerOutlier) +
           values % kBlockValues / kValuesPerOutlier;
  }
  static bool NumbersAreKept(const uint8_t* numbers, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      if (!IsKept(Get16(numbers + 2 * i))) return false;
    }
    return true;
  }

  uint64_t plane_values() const { return heads_ * tokens_ * channels_; }
  uint64_t row_bytes() const { return KvQuantRowBytes(channels_); }
  uint64_t codes_bytes() const { return RoundUpToPart(heads_ * tokens_ * row_bytes()); }
  uint64_t OutliersAt(uint64_t plane) const {
    return RoundUpToPart(4 * tokens_) + plane * RoundUpToPart(4 * outliers_);
  }
  uint64_t CodesAt(uint64_t plane) const { return OutliersAt(2) + plane * codes_bytes(); }
  uint64_t FirstTokens(const SlabPlace& place) const {
    CHECK(place.position >= 0);
    return std::min<uint64_t>(std::max<int64_t>(0, kKvQuantFirstTokens - place.position), tokens_);
  }
  uint64_t PartBytes(const SlabPlace& place) const {
    return CodesAt(2) + RoundUpToPart(4 * heads_ * FirstTokens(place) * channels_);
  }
  const KvQuantLayer& LayerOf(const SlabPlace& place) const {
    CHECK(place.layer >= 0 && static_cast<size_t>(place.layer) < layers_.size());
    return layers_[place.layer];
  }

  // Visits the rows of a prompt's first tokens: where they lie in the slab, in numbers, and in the
  // part, in bytes.
  template <typename Visit>
  void ForFirstTokens(const SlabPlace& place, const Visit& visit) const {
    uint64_t in_part = CodesAt(2);
    for (uint64_t head = 0; head < 2 * heads_; ++head) {
      for (uint64_t token = 0; token < FirstTokens(place); ++token) {
        visit((head * tokens_ + token) * channels_, in_part);
        in_part += channels_ * sizeof(uint16_t);
      }
    }
  }

  std::vector<float> UnturnedKeys(const SlabPlace& place, const uint16_t* keys) const {
    const KvQuantRotation::Angles angles = rotation_.At(place.position);
    std::vector<float> numbers(plane_values());
    for (uint64_t head = 0; head < heads_; ++head) {
      const uint64_t at = head * tokens_ * channels_;
      UndoRotation(angles, keys + at, tokens_, channels_, numbers.data() + at);
    }
    return numbers;
  }

  // The nearest of the centroids.
  class Quantizer {
   public:
    explicit Quantizer(const std::array<float, kKvQuantCentroids>& centroids)
        : centroids_(centroids) {
      for (size_t i = 0; i + 1 < centroids.size(); ++i) {
        between_[i] = (centroids[i] + centroids[i + 1]) * 0.5f;
      }
    }
    void Put(float number, float offset, float scale, uint8_t* code, float* error) const {
      const float normal = scale > 0 ? (number - offset) / scale : 0;
      int nearest = 0;
      for (const float between : between_) nearest += normal > between;
      *code = static_cast<uint8_t>(nearest);
      *error = std::abs(number - (offset + scale * centroids_[nearest]));
    }

   private:
    const std::array<float, kKvQuantCentroids>& centroids_;
    std::array<float, kKvQuantCentroids - 1> between_;
  };

  PlaneCodes QuantizeKeys(const KvQuantLayer& layer, const SlabPlace& place,
                          const std::vector<float>& numbers) const {
    const Quantizer quantizer(layer.centroids[0]);
    PlaneCodes plane{std::vector<uint8_t>(numbers.size()), std::vector<float>(numbers.size())};
    for (uint64_t i = 0; i < numbers.size(); ++i) {
      if (i / channels_ % tokens_ < FirstTokens(place)) continue;
      const uint64_t channel = i / (tokens_ * channels_) * channels_ + i % channels_;
      quantizer.Put(numbers[i], layer.key_offsets[channel], layer.key_scales[channel],
                    &plane.codes[i], &plane.errors[i]);
    }
    return plane;
  }

  // Writes the tokens' offsets and scales, too: mean and standard deviation over all heads.
  PlaneCodes QuantizeValues(const KvQuantLayer& layer, const SlabPlace& place,
                            const std::vector<float>& numbers, uint8_t* out) const {
    const Quantizer quantizer(layer.centroids[1]);
    PlaneCodes plane{std::vector<uint8_t>(numbers.size()), std::vector<float>(numbers.size())};
    for (uint64_t token = FirstTokens(place); token < tokens_; ++token) {
      double sum = 0, squares = 0;
      ForToken(token, [&](uint64_t i) { sum += numbers[i]; });
      const double mean = sum / static_cast<double>(heads_ * channels_);
      ForToken(token, [&](uint64_t i) { squares += (numbers[i] - mean) * (numbers[i] - mean); });
      const double spread = std::sqrt(squares / static_cast<double>(heads_ * channels_));
      const uint16_t offset = NumberToBf16(static_cast<float>(mean));
      const uint16_t scale = NumberToBf16(static_cast<float>(spread));
      Put16(out + 2 * token, offset);
      Put16(out + 2 * (tokens_ + token), scale);
      ForToken(token, [&](uint64_t i) {
        quantizer.Put(numbers[i], Bf16ToF32(offset), Bf16ToF32(scale), &plane.codes[i],
                      &plane.errors[i]);
      });
    }
    return plane;
  }

  // The places of a token's numbers in a plane.
  template <typename Visit>
  void ForToken(uint64_t token, const Visit& visit) const {
    for (uint64_t head = 0; head < heads_; ++head) {
      for (uint64_t c = 0; c < channels_; ++c) visit((head * tokens_ + token) * channels_ + c);
    }
  }

  void EncodePlane(uint64_t plane, const std::vector<float>& numbers, const PlaneCodes& coded,
                   uint8_t* out) const {
    uint8_t* const codes = out + CodesAt(plane);
    for (uint64_t row = 0; row < heads_ * tokens_; ++row) {
      uint8_t* const to = codes + row * row_bytes();
      for (uint64_t c = 0; c < channels_; ++c) {
        const unsigned bits = static_cast<unsigned>(coded.codes[row * channels_ + c]) << 3 * c % 8;
        to[3 * c / 8] |= static_cast<uint8_t>(bits);
        if (bits > 0xff) to[3 * c / 8 + 1] |= static_cast<uint8_t>(bits >> 8);
      }
    }
    // The outliers of a block are those with the largest errors, the first of those as large.
    uint8_t* indexes = out + OutliersAt(plane);
    uint8_t* kept = indexes + 2 * outliers_;
    std::vector<uint32_t> order;
    for (uint64_t first = 0; first < numbers.size(); first += kBlockValues) {
      order.resize(std::min(kBlockValues, numbers.size() - first));
      std::iota(order.begin(), order.end(), 0);
      const auto end = order.begin() + static_cast<int64_t>(order.size() / kValuesPerOutlier);
      std::nth_element(order.begin(), end, order.end(), [&](uint32_t a, uint32_t b) {
        const float of_a = coded.errors[first + a], of_b = coded.errors[first + b];
        return of_a != of_b ? of_a > of_b : a < b;
      });
      std::sort(order.begin(), end);
      for (auto index = order.begin(); index != end; ++index) {
        Put16(indexes, static_cast<uint16_t>(*index));
        Put16(kept, NumberToBf16(numbers[first + *index]));
        indexes += 2;
        kept += 2;
      }
    }
  }

  // Indexes in order within their block, and finite values.
  Status CheckOutliers(const uint8_t* outliers) const {
    if (!NumbersAreKept(outliers + 2 * outliers_, outliers_)) {
      return Corrupt("an outlier is not finite");
    }
    bool good = true;
    uint64_t next = 0;  // the least that the next may be
    ForOutliers(outliers, [&](uint64_t first, uint64_t at, uint16_t) {
      good &= at >= std::max(next, first) && at < std::min(first + kBlockValues, plane_values());
      next = at + 1;
    });
    return good ? Status() : Corrupt("an outlier's index is out of order");
  }

  // Visits all of a plane: where the block begins, and the value's place in the plane.
  template <typename Visit>
  void ForOutliers(const uint8_t* outliers, const Visit& visit) const {
    uint64_t at = 0;
    for (uint64_t first = 0; first < plane_values(); first += kBlockValues) {
      const uint64_t block = std::min(kBlockValues, plane_values() - first);
      for (uint64_t i = 0; i < block / kValuesPerOutlier; ++i, ++at) {
        visit(first, first + Get16(outliers + 2 * at), Get16(outliers + 2 * (outliers_ + at)));
      }
    }
  }

  void DecodeKeys(const SlabPlace& place, const uint8_t* in, uint16_t* keys) const {
    const KvQuantLayer& layer = LayerOf(place);
    const KvQuantRotation::Angles angles = rotation_.At(place.position);
    std::vector<float> numbers(plane_values());
    for (uint64_t head = 0; head < heads_; ++head) {
      kernels_.keys(in + CodesAt(0) + head * tokens_ * row_bytes(), layer.centroids[0].data(),
                    layer.key_offsets.data() + head * channels_,
                    layer.key_scales.data() + head * channels_, tokens_, channels_,
                    numbers.data() + head * tokens_ * channels_);
    }
    ForOutliers(in + OutliersAt(0),
                [&](uint64_t, uint64_t at, uint16_t value) { numbers[at] = Bf16ToF32(value); });
    for (uint64_t head = 0; head < heads_; ++head) {
      const uint64_t at = head * tokens_ * channels_;
      kernels_.rotate(numbers.data() + at, angles.cosines.data(), angles.sines.data(), tokens_,
                      channels_, keys + at);
    }
  }

  void DecodeValues(const KvQuantLayer& layer, const uint8_t* in, uint16_t* values) const {
    std::vector<float> offsets(tokens_), scales(tokens_);
    for (uint64_t token = 0; token < tokens_; ++token) {
      offsets[token] = Bf16ToF32(Get16(in + 2 * token));
      scales[token] = Bf16ToF32(Get16(in + 2 * (tokens_ + token)));
    }
    for (uint64_t head = 0; head < heads_; ++head) {
      kernels_.values(in + CodesAt(1) + head * tokens_ * row_bytes(), layer.centroids[1].data(),
                      offsets.data(), scales.data(), tokens_, channels_,
                      values + head * tokens_ * channels_);
    }
    ForOutliers(in + OutliersAt(1),
                [&](uint64_t, uint64_t at, uint16_t value) { values[at] = value; });
  }

  const uint64_t heads_, tokens_, channels_;
  const uint64_t outliers_;  // of a plane
  const KvQuantRotation rotation_;
  const std::vector<KvQuantLayer> layers_;
  const KvQuantKernels& kernels_;
};

}  // namespace

Result<std::unique_ptr<LayerCodec>> MakeKvQuant3Codec(const CodecSpec& spec, CodecIsa isa) {
  RETURN_IF_ERROR(CheckTables(spec, Codec::kKvQuant3, "kvquant3"));
  ASSIGN_OR_RETURN(KvQuantTables tables, ParseKvQuant(*spec.tables));
  return std::make_unique<KvQuantCodec>(spec.layout, std::move(tables), isa);
}

}  // namespace kvcake
