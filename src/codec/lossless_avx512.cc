#include "codec/lossless_kernels.h"

#if defined(__x86_64__)

#include "codec/avx512_intrinsics.h"

#define KVCAKE_ISA                                                                 \
  __attribute__((                                                                  \
      target("avx2,popcnt,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi," \
             "avx512vbmi2")))

namespace kvcake {
namespace {

struct Tables {
  KVCAKE_ISA explicit Tables(const std::array<uint8_t, 16>& of)
      : table(
            _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(of.data())))) {}
  __m512i table;
};

template <int kWidth>
KVCAKE_ISA inline void DecodeGroup(const Tables& tables, const uint8_t* rest,
                                   const uint64_t* places, uint64_t escaped, const uint8_t* escapes,
                                   uint16_t* values) {
  constexpr int kSelect = 0xca;  // of three inputs: the second where the first has a 1
  __m512i place = _mm512_setzero_si512();
  for (int bit = 0; bit < kWidth; ++bit) {
    place = _mm512_mask_add_epi8(place, places[bit], place,
                                 _mm512_set1_epi8(static_cast<char>(1 << bit)));
  }
  // Expanding from a register: from memory it takes microcode on some CPUs.
  const __m512i exponent = _mm512_mask_expand_epi8(_mm512_shuffle_epi8(tables.table, place),
                                                   escaped, _mm512_loadu_si512(escapes));
  const __m512i signs = _mm512_loadu_si512(rest);
  const __m512i low7 = _mm512_set1_epi8(0x7f);
  const __m512i high =
      _mm512_ternarylogic_epi64(low7, _mm512_srli_epi16(exponent, 1), signs, kSelect);
  const __m512i low =
      _mm512_ternarylogic_epi64(low7, signs, _mm512_slli_epi16(exponent, 7), kSelect);
  const __m512i even = _mm512_unpacklo_epi8(low, high), odd = _mm512_unpackhi_epi8(low, high);
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  _mm512_storeu_si512(values, _mm512_permutex2var_epi64(even, first, odd));
  _mm512_storeu_si512(values + 32, _mm512_permutex2var_epi64(even, second, odd));
}

}  // namespace
}  // namespace kvcake

#include "codec/lossless_inl.h"

namespace kvcake {

KVCAKE_ISA bool DecodeLosslessAvx512(const LosslessBlock& block, uint64_t count, uint16_t* values) {
  return DecodeBlock(block, count, values);
}

}  // namespace kvcake

#endif  // __x86_64__
