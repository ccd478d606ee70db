#include "codec/int8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bf16.h"
#include "base/check.h"
#include "codec/int8_kernels.h"

namespace kvcake {
namespace {

// A part, everything from a multiple of 64 on: of each head and block of tokens the bases of its
// channels, then their steps; of each head the steps of its tokens; the bytes of K; those of V.
constexpr uint64_t kBlockTokensMax = 128;
constexpr float kKeyMost = 255, kValueMost = 127;

bool IsFinite(uint16_t bf16) { return (bf16 & 0x7f80) != 0x7f80; }
// Below 2^126: neither a difference of two nor what is decoded of it leaves the range of bf16.
bool IsKept(uint16_t bf16) { return (bf16 & 0x7f80) < 0x7e80; }

// The smallest bf16 that is no less than a finite number from 0 on.
uint16_t RoundedUp(float value) {
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + 0xffff) >> 16);
}

// To the nearest integer, ties to even, for numbers far from 2^23; a loop of it becomes vectors.
float Nearest(float value) {
  constexpr float kShift = 0x1.8p23f;
  return value + kShift - kShift;
}

class Int8Codec : public LayerCodec {
 public:
  Int8Codec(const KvLayout& layout, CodecIsa isa)
      : heads_(layout.kv_heads),
        tokens_(layout.chunk_tokens),
        channels_(layout.head_dim),
        blocks_((tokens_ + kBlockTokensMax - 1) / kBlockTokensMax),
        block_tokens_((tokens_ + blocks_ - 1) / blocks_),
        kernels_(Int8KernelsFor(isa)) {}

  uint64_t part_bytes_max() const override { return values_at() + plane_bytes(); }

  Result<uint64_t> Encode(const SlabPlace&, std::span<const uint16_t> slab,
                          std::span<std::byte> part) const override {
    CHECK(slab.size() == 2 * plane_values() && part.size() >= part_bytes_max());
    std::memset(part.data(), 0, part_bytes_max());
    auto* const out = reinterpret_cast<uint8_t*>(part.data());
    for (uint64_t head = 0; head < heads_; ++head) {
      const uint64_t at = head * tokens_ * channels_;
      for (uint64_t block = 0; block < blocks_; ++block) {
        const uint64_t first = FirstToken(block), rows = FirstToken(block + 1) - first;
        const uint64_t in_head = at + first * channels_;
        RETURN_IF_ERROR(EncodeKeys(slab.data() + in_head, rows, Bf16At(part, BasesAt(head, block)),
                                   out + keys_at() + in_head));
      }
      RETURN_IF_ERROR(EncodeValues(slab.data() + plane_values() + at,
                                   Bf16At(part, TokenStepsAt(head)), out + values_at() + at));
    }
    return part_bytes_max();
  }

  Status Decode(const SlabPlace&, std::span<const std::byte> part,
                std::span<uint16_t> slab) const override {
    CHECK(slab.size() == 2 * plane_values());
    if (part.size() != part_bytes_max()) {
      return Fail(ErrorCode::kCorrupt, "a part of codec int8 has {} bytes, must have {}",
                  part.size(), part_bytes_max());
    }
    const auto* const scales = reinterpret_cast<const uint16_t*>(part.data());
    if (!std::all_of(scales, scales + keys_at() / sizeof(uint16_t), IsFinite)) {
      return Fail(ErrorCode::kCorrupt, "a part of codec int8 has a step that is not finite");
    }
    const auto* const in = reinterpret_cast<const uint8_t*>(part.data());
    for (uint64_t head = 0; head < heads_; ++head) {
      const uint64_t at = head * tokens_ * channels_;
      for (uint64_t block = 0; block < blocks_; ++block) {
        const uint64_t first = FirstToken(block), rows = FirstToken(block + 1) - first;
        const uint64_t in_head = at + first * channels_;
        const uint16_t* const bases = Bf16At(part, BasesAt(head, block));
        kernels_.keys(in + keys_at() + in_head, bases, bases + channels_, rows, channels_,
                      slab.data() + in_head);
      }
      kernels_.values(reinterpret_cast<const int8_t*>(in + values_at() + at),
                      Bf16At(part, TokenStepsAt(head)), tokens_, channels_,
                      slab.data() + plane_values() + at);
    }
    return {};
  }

 private:
  uint64_t plane_values() const { return heads_ * tokens_ * channels_; }
  uint64_t plane_bytes() const { return RoundUpToPart(plane_values()); }
  uint64_t token_steps_at() const {
    return RoundUpToPart(heads_ * blocks_ * 2 * channels_ * sizeof(uint16_t));
  }
  uint64_t keys_at() const {
    return token_steps_at() + RoundUpToPart(heads_ * tokens_ * sizeof(uint16_t));
  }
  uint64_t values_at() const { return keys_at() + plane_bytes(); }

  uint64_t FirstToken(uint64_t block) const { return std::min(block * block_tokens_, tokens_); }

  // The bases of the block's channels, their steps behind them.
  uint64_t BasesAt(uint64_t head, uint64_t block) const {
    return (head * blocks_ + block) * 2 * channels_ * sizeof(uint16_t);
  }
  uint64_t TokenStepsAt(uint64_t head) const {
    return token_steps_at() + head * tokens_ * sizeof(uint16_t);
  }
  static uint16_t* Bf16At(std::span<std::byte> part, uint64_t at) {
    return reinterpret_cast<uint16_t*>(part.data() + at);
  }
  static const uint16_t* Bf16At(std::span<const std::byte> part, uint64_t at) {
    return reinterpret_cast<const uint16_t*>(part.data() + at);
  }

  static tl::unexpected<Error> NotKept() {
    return Fail(ErrorCode::kUnsupported,
                "codec int8 keeps no numbers of 2^126 or more, and no NaN");
  }

  // A block of a head's keys.
  Status EncodeKeys(const uint16_t* keys, uint64_t rows, uint16_t* bases, uint8_t* bytes) const {
    std::vector<float> least(channels_, std::numeric_limits<float>::infinity());
    std::vector<float> most(channels_, -std::numeric_limits<float>::infinity());
    bool kept = true;
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint64_t c = 0; c < channels_; ++c) {
        const uint16_t key = keys[row * channels_ + c];
        kept &= IsKept(key);
        least[c] = std::min(least[c], Bf16ToF32(key));
        most[c] = std::max(most[c], Bf16ToF32(key));
      }
    }
    std::vector<float> per_step(channels_);
    for (uint64_t c = 0; c < channels_; ++c) {
      const float range = most[c] - least[c];
      bases[c] = static_cast<uint16_t>(std::bit_cast<uint32_t>(least[c]) >> 16);
      bases[channels_ + c] = RoundedUp(range / kKeyMost);
      // What is divided by infinity is step 0.
      const float step = Bf16ToF32(bases[channels_ + c]);
      per_step[c] = step > 0 ? step : std::numeric_limits<float>::infinity();
    }
    if (!kept) return NotKept();
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint64_t c = 0; c < channels_; ++c) {
        const float key = Bf16ToF32(keys[row * channels_ + c]);
        bytes[row * channels_ + c] = static_cast<uint8_t>(
            static_cast<int>(std::min(Nearest((key - least[c]) / per_step[c]), kKeyMost)));
      }
    }
    return {};
  }

  // A head's values.
  Status EncodeValues(const uint16_t* values, uint16_t* steps, uint8_t* bytes) const {
    for (uint64_t row = 0; row < tokens_; ++row) {
      float most = 0;
      bool kept = true;
      for (uint64_t c = 0; c < channels_; ++c) {
        const uint16_t value = values[row * channels_ + c];
        kept &= IsKept(value);
        most = std::max(most, std::abs(Bf16ToF32(value)));
      }
      if (!kept) return NotKept();
      steps[row] = RoundedUp(most / kValueMost);
      const float step =
          steps[row] > 0 ? Bf16ToF32(steps[row]) : std::numeric_limits<float>::infinity();
      for (uint64_t c = 0; c < channels_; ++c) {
        const float n = Nearest(Bf16ToF32(values[row * channels_ + c]) / step);
        bytes[row * channels_ + c] =
            static_cast<uint8_t>(static_cast<int>(std::clamp(n, -kValueMost, kValueMost)));
      }
    }
    return {};
  }

  const uint64_t heads_, tokens_, channels_;
  const uint64_t blocks_, block_tokens_;
  const Int8Kernels& kernels_;
};

}  // namespace

Result<std::unique_ptr<LayerCodec>> MakeInt8Codec(const CodecSpec& spec, CodecIsa isa) {
  return std::make_unique<Int8Codec>(spec.layout, isa);
}

}  // namespace kvcake
