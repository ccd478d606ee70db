#include "codec/lossless_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define KVCAKE_ISA __attribute__((target("avx2,popcnt,bmi,bmi2")))

namespace kvcake {
namespace {

// For each byte of a mask: where the bytes of a list go that are meant for its set bits.
struct Expansions {
  constexpr Expansions() {
    for (int mask = 0; mask < 256; ++mask) {
      uint8_t next = 0;
      for (int bit = 0; bit < 8; ++bit) of[mask][bit] = (mask >> bit & 1) != 0 ? next++ : 0x80;
    }
  }
  alignas(64) uint8_t of[256][8] = {};
};
constexpr Expansions kExpansions;

struct Tables {
  KVCAKE_ISA explicit Tables(const std::array<uint8_t, 16>& of)
      : table(_mm256_broadcastsi128_si256(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(of.data())))) {}
  __m256i table;
};

// 0xff for each bit that is set, else 0.
KVCAKE_ISA inline __m256i BytesOfBits(uint32_t bits) {
  const __m256i spread =
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int32_t>(bits)), spread);
  return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
}

// The next bytes of the list at the set bits of eight; moves on behind them.
KVCAKE_ISA inline __m128i ExpandEight(uint32_t mask, const uint8_t** list) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(*list));
  const __m128i to = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kExpansions.of[mask]));
  *list += _mm_popcnt_u32(mask);
  return _mm_shuffle_epi8(bytes, to);
}

KVCAKE_ISA inline __m256i Expand(uint32_t mask, const uint8_t** list) {
  const __m128i a = ExpandEight(mask & 0xff, list), b = ExpandEight(mask >> 8 & 0xff, list);
  const __m128i c = ExpandEight(mask >> 16 & 0xff, list), d = ExpandEight(mask >> 24, list);
  return _mm256_set_m128i(_mm_unpacklo_epi64(c, d), _mm_unpacklo_epi64(a, b));
}

template <int kWidth>
KVCAKE_ISA inline void DecodeGroup(const Tables& tables, const uint8_t* rest,
                                   const uint64_t* places, uint64_t escaped, const uint8_t* escapes,
                                   uint16_t* values) {
  const __m256i low7 = _mm256_set1_epi8(0x7f);
  for (int half = 0; half < 2; ++half) {
    __m256i place = _mm256_setzero_si256();
    for (int bit = 0; bit < kWidth; ++bit) {
      const __m256i set = BytesOfBits(static_cast<uint32_t>(places[bit] >> 32 * half));
      place = _mm256_or_si256(place,
                              _mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(1 << bit))));
    }
    const auto mask = static_cast<uint32_t>(escaped >> 32 * half);
    const __m256i exponent = _mm256_blendv_epi8(_mm256_shuffle_epi8(tables.table, place),
                                                Expand(mask, &escapes), BytesOfBits(mask));
    const __m256i signs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rest + 32 * half));
    const __m256i high = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(exponent, 1), low7),
                                         _mm256_andnot_si256(low7, signs));
    const __m256i low = _mm256_or_si256(_mm256_andnot_si256(low7, _mm256_slli_epi16(exponent, 7)),
                                        _mm256_and_si256(low7, signs));
    const __m256i even = _mm256_unpacklo_epi8(low, high), odd = _mm256_unpackhi_epi8(low, high);
    auto* const to = reinterpret_cast<__m256i*>(values + 32 * half);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }
}

}  // namespace
}  // namespace kvcake

#include "codec/lossless_inl.h"

namespace kvcake {

KVCAKE_ISA bool DecodeLosslessAvx2(const LosslessBlock& block, uint64_t count, uint16_t* values) {
  return DecodeBlock(block, count, values);
}

}  // namespace kvcake

#endif  // __x86_64__
