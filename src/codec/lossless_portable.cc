#include "codec/lossless_kernels.h"

#define KVCAKE_ISA

namespace kvcake {
namespace {

struct Tables {
  explicit Tables(const std::array<uint8_t, 16>& of) : table(of) {}
  std::array<uint8_t, 16> table;
};

template <int kWidth>
void DecodeGroup(const Tables& tables, const uint8_t* rest, const uint64_t* places,
                 uint64_t escaped, const uint8_t* escapes, uint16_t* values) {
  for (size_t i = 0; i < kGroupValues; ++i) {
    unsigned place = 0;
    for (int bit = 0; bit < kWidth; ++bit) place |= (places[bit] >> i & 1) << bit;
    const unsigned exponent = (escaped >> i & 1) != 0 ? *escapes++ : tables.table[place];
    values[i] = static_cast<uint16_t>((rest[i] & 0x80u) << 8 | exponent << 7 | (rest[i] & 0x7fu));
  }
}

}  // namespace
}  // namespace kvcake

#include "codec/lossless_inl.h"

namespace kvcake {

bool DecodeLosslessPortable(const LosslessBlock& block, uint64_t count, uint16_t* values) {
  return DecodeBlock(block, count, values);
}

LosslessDecoder LosslessDecoderFor(CodecIsa isa) {
#if defined(__x86_64__)
  if (isa == CodecIsa::kAvx2) return DecodeLosslessAvx2;
  if (isa == CodecIsa::kAvx512) return DecodeLosslessAvx512;
#endif
  return DecodeLosslessPortable;
}

}  // namespace kvcake
