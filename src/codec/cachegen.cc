#include "codec/cachegen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/check.h"
#include "codec/cachegen_kernels.h"
#include "codec/cachegen_tables.h"
#include "codec/int8_kernels.h"

namespace kvcake {
namespace {

// A part, everything from a multiple of 64 on: the step codes of K's tokens, then of V's; the state
// of each lane; the words, filled up with zeros.
constexpr uint64_t kStatesBytes = kRansLanes * sizeof(uint32_t);
// A symbol with 1 of 4096 slots takes 12 bits, and 1/16 of a slot at most is lost by rounding.
constexpr uint64_t kSymbolBitsMost = 13;

// Below 2^126, as int8 has it.
bool IsKept(uint16_t bf16) { return (bf16 & 0x7f80) < 0x7e80; }

// To the nearest integer, ties to even, for numbers far from 2^23.
float Nearest(float value) {
  constexpr float kShift = 0x1.8p23f;
  return value + kShift - kShift;
}

// One plane of a layer, as encoder and decoder want it.
struct Plane {
  int most = 0;
  std::array<uint16_t, kStepCodes> steps = {};
  std::vector<RansTable> tables;  // [kv_head][channel]
};

// The words of a part from its last symbol to its first, as rANS writes them.
class RansWriter {
 public:
  RansWriter() { states_.fill(kRansLeast); }

  void Put(uint64_t lane, uint32_t entry) {
    const uint32_t first = entry & 0xffff, count = entry >> 16;
    uint32_t state = states_[lane];
    if (state >= count << (32 - kRansBits)) {
      words_.push_back(static_cast<uint16_t>(state));
      state >>= 16;
    }
    states_[lane] = (state / count << kRansBits) + state % count + first;
  }
  uint64_t bytes() const { return kStatesBytes + words_.size() * sizeof(uint16_t); }
  void Write(uint8_t* out) const {
    std::memcpy(out, states_.data(), kStatesBytes);
    out += kStatesBytes;
    for (auto word = words_.rbegin(); word != words_.rend(); ++word, out += sizeof(*word)) {
      std::memcpy(out, &*word, sizeof(*word));
    }
  }

 private:
  std::array<uint32_t, kRansLanes> states_;
  std::vector<uint16_t> words_;
};

class CacheGenCodec : public LayerCodec {
 public:
  CacheGenCodec(const KvLayout& layout, const std::vector<CacheGenPlane>& planes, CodecIsa isa)
      : heads_(layout.kv_heads),
        tokens_(layout.chunk_tokens),
        channels_(layout.head_dim),
        decode_(RansDecoderFor(isa)),
        int8_(Int8KernelsFor(isa)) {
    for (const CacheGenPlane& from : planes) {
      Plane& plane = planes_.emplace_back();
      plane.most = from.most;
      plane.steps = CacheGenSteps(from.first_step);
      const int symbols = 2 * from.most + 1;
      for (uint64_t channel = 0; channel < heads_ * channels_; ++channel) {
        plane.tables.push_back(MakeRansTable(from.counts.data() + channel * symbols, symbols));
      }
    }
  }

  uint64_t part_bytes_max() const override {
    const uint64_t lane_values = (tokens_ + kRansLanes - 1) / kRansLanes * 2 * heads_ * channels_;
    const uint64_t lane_words = (kSymbolBitsMost * lane_values + 15) / 16 + 1;
    return states_at() + kStatesBytes + RoundUpToPart(2 * kRansLanes * lane_words);
  }

  Result<uint64_t> Encode(const SlabPlace& place, std::span<const uint16_t> slab,
                          std::span<std::byte> part) const override {
    CHECK(slab.size() == 2 * plane_values() && part.size() >= part_bytes_max());
    auto* const out = reinterpret_cast<uint8_t*>(part.data());
    std::memset(out, 0, states_at());
    std::vector<uint8_t> symbols(slab.size());  // [K or V][kv_head][channel][token]
    for (int i = 0; i < 2; ++i) {
      RETURN_IF_ERROR(Quantize(PlaneOf(place, i), slab.data() + i * plane_values(),
                               out + i * tokens_, symbols.data() + i * plane_values()));
    }
    RansWriter writer;
    for (int i = 1; i >= 0; --i) {
      const Plane& plane = PlaneOf(place, i);
      for (uint64_t channel = heads_ * channels_; channel-- > 0;) {
        const uint8_t* const of = symbols.data() + i * plane_values() + channel * tokens_;
        const RansTable& table = plane.tables[channel];
        for (uint64_t token = tokens_; token-- > 0;) {
          writer.Put(token % kRansLanes, table.of[of[token]]);
        }
      }
    }
    const uint64_t bytes = states_at() + writer.bytes();
    CHECK(bytes <= part_bytes_max());
    writer.Write(out + states_at());
    std::memset(out + bytes, 0, RoundUpToPart(bytes) - bytes);
    return RoundUpToPart(bytes);
  }

  Status Decode(const SlabPlace& place, std::span<const std::byte> part,
                std::span<uint16_t> slab) const override {
    CHECK(slab.size() == 2 * plane_values());
    const auto* const in = reinterpret_cast<const uint8_t*>(part.data());
    if (part.size() < states_at() + kStatesBytes) return Corrupt("it is too short");
    if (part.size() % kPartAlign != 0) return Corrupt("its length is no multiple of 64");
    if (!IsZero(in + 2 * tokens_, in + states_at())) return Corrupt("it is filled with no zeros");
    RansReader reader{.states = {}, .at = in + states_at() + kStatesBytes, .end = in + part.size()};
    std::memcpy(reader.states, in + states_at(), kStatesBytes);
    for (const uint32_t state : reader.states) {
      if (state < kRansLeast) return Corrupt("a state is none that can be written");
    }
    std::vector<uint8_t> symbols(channels_ * tokens_), rows(channels_ * tokens_);
    std::vector<uint16_t> steps(tokens_);
    for (int i = 0; i < 2; ++i) {
      const Plane& plane = PlaneOf(place, i);
      for (uint64_t token = 0; token < tokens_; ++token) {
        steps[token] = plane.steps[in[i * tokens_ + token]];
      }
      for (uint64_t head = 0; head < heads_; ++head) {
        for (uint64_t c = 0; c < channels_; ++c) {
          if (!decode_(&reader, plane.tables[head * channels_ + c], tokens_,
                       symbols.data() + c * tokens_)) {
            return Corrupt("it is too short");
          }
        }
        ToRows(symbols.data(), plane.most, rows.data());
        int8_.values(reinterpret_cast<const int8_t*>(rows.data()), steps.data(), tokens_, channels_,
                     slab.data() + i * plane_values() + head * tokens_ * channels_);
      }
    }
    for (const uint32_t state : reader.states) {
      if (state != kRansLeast) return Corrupt("its symbols do not end where they began");
    }
    if (reader.end - reader.at >= static_cast<int64_t>(kPartAlign) ||
        !IsZero(reader.at, reader.end)) {
      return Corrupt("it is too long");
    }
    return {};
  }

 private:
  static tl::unexpected<Error> Corrupt(const char* why) {
    return Fail(ErrorCode::kCorrupt, "a part of codec cachegen: {}", why);
  }
  static bool IsZero(const uint8_t* begin, const uint8_t* end) {
    return std::all_of(begin, end, [](uint8_t byte) { return byte == 0; });
  }

  uint64_t plane_values() const { return heads_ * tokens_ * channels_; }
  uint64_t states_at() const { return RoundUpToPart(2 * tokens_); }
  const Plane& PlaneOf(const SlabPlace& place, int plane) const {
    CHECK(place.layer >= 0 && 2 * static_cast<size_t>(place.layer) < planes_.size());
    return planes_[2 * place.layer + plane];
  }

  // [channel][token] of symbols to [token][channel] of numbers, for one head.
  void ToRows(const uint8_t* symbols, int most, uint8_t* rows) const {
    for (uint64_t token = 0; token < tokens_; ++token) {
      for (uint64_t c = 0; c < channels_; ++c) {
        rows[token * channels_ + c] = static_cast<uint8_t>(symbols[c * tokens_ + token] - most);
      }
    }
  }

  // The step of each token is the smallest that reaches its largest number.
  Status Quantize(const Plane& plane, const uint16_t* values, uint8_t* codes,
                  uint8_t* symbols) const {
    const auto most = static_cast<float>(plane.most);
    std::vector<float> largest(tokens_);
    bool kept = true;
    for (uint64_t i = 0; i < plane_values(); ++i) {
      kept &= IsKept(values[i]);
      float& of_token = largest[i / channels_ % tokens_];
      of_token = std::max(of_token, std::abs(Bf16ToF32(values[i])));
    }
    if (!kept) {
      return Fail(ErrorCode::kUnsupported,
                  "codec cachegen keeps no numbers of 2^126 or more, and no NaN");
    }
    std::vector<float> steps(tokens_);
    for (uint64_t token = 0; token < tokens_; ++token) {
      const auto step =
          std::lower_bound(plane.steps.begin(), plane.steps.end(), largest[token] / most,
                           [](uint16_t step, float least) { return Bf16ToF32(step) < least; });
      if (step == plane.steps.end()) {
        return Fail(ErrorCode::kUnsupported,
                    "codec cachegen: a number of {} is more than its tables of the model reach",
                    largest[token]);
      }
      codes[token] = static_cast<uint8_t>(step - plane.steps.begin());
      steps[token] = Bf16ToF32(*step);
    }
    for (uint64_t head = 0; head < heads_; ++head) {
      for (uint64_t token = 0; token < tokens_; ++token) {
        const uint16_t* const row = values + (head * tokens_ + token) * channels_;
        for (uint64_t c = 0; c < channels_; ++c) {
          const float n = std::clamp(Nearest(Bf16ToF32(row[c]) / steps[token]), -most, most);
          symbols[(head * channels_ + c) * tokens_ + token] = static_cast<uint8_t>(n + most);
        }
      }
    }
    return {};
  }

  const uint64_t heads_, tokens_, channels_;
  const RansDecoder decode_;
  const Int8Kernels& int8_;
  std::vector<Plane> planes_;  // [layer][K or V]
};

}  // namespace

Result<std::unique_ptr<LayerCodec>> MakeCacheGenCodec(const CodecSpec& spec, CodecIsa isa) {
  RETURN_IF_ERROR(CheckTables(spec, Codec::kCacheGen, "cachegen"));
  ASSIGN_OR_RETURN(const std::vector<CacheGenPlane> planes, ParseCacheGen(*spec.tables));
  return std::make_unique<CacheGenCodec>(spec.layout, planes, isa);
}

}  // namespace kvcake
