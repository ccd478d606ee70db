#include <algorithm>
#include <cstring>

#include "codec/cachegen_kernels.h"
#include "codec/cachegen_tables.h"

#if defined(__x86_64__)

#include "codec/avx512_intrinsics.h"

#define KVCAKE_ISA __attribute__((target("avx2,popcnt,avx512f,avx512bw,avx512dq,avx512vl")))

namespace kvcake {

KVCAKE_ISA bool DecodeRansAvx512(RansReader* reader, const RansTable& table, uint64_t count,
                                 uint8_t* symbols) {
  const __m512i low16 = _mm512_set1_epi32(0xffff);
  const __m512i entries[2] = {_mm512_load_si512(table.of), _mm512_load_si512(table.of + 16)};
  const __m512i firsts[2] = {_mm512_and_si512(entries[0], low16),
                             _mm512_and_si512(entries[1], low16)};
  __m512i states = _mm512_load_si512(reader->states);
  for (uint64_t at = 0; at < count; at += kRansLanes) {
    const uint64_t lanes = std::min(kRansLanes, count - at);
    const auto used = static_cast<__mmask16>((1u << lanes) - 1);
    const __m512i slot = _mm512_and_si512(states, _mm512_set1_epi32(kRansTotal - 1));
    __m512i symbol = _mm512_setzero_si512();
    for (int step = kRansSymbolsMax / 2; step > 0; step /= 2) {
      const __m512i next = _mm512_add_epi32(symbol, _mm512_set1_epi32(step));
      const __m512i first = _mm512_permutex2var_epi32(firsts[0], next, firsts[1]);
      symbol = _mm512_mask_mov_epi32(symbol, _mm512_cmple_epi32_mask(first, slot), next);
    }
    const __m512i entry = _mm512_permutex2var_epi32(entries[0], symbol, entries[1]);
    const __m512i kept =
        _mm512_mullo_epi32(_mm512_srli_epi32(entry, 16), _mm512_srli_epi32(states, kRansBits));
    const __m512i read =
        _mm512_sub_epi32(_mm512_add_epi32(kept, slot), _mm512_and_si512(entry, low16));
    const __mmask16 wants = _mm512_mask_cmplt_epu32_mask(used, read, _mm512_set1_epi32(kRansLeast));
    const auto bytes = static_cast<int64_t>(sizeof(uint16_t) * _mm_popcnt_u32(wants));
    const int64_t left = reader->end - reader->at;
    if (bytes > left) return false;
    __m256i words;
    if (left >= 32) {
      words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(reader->at));
    } else {
      alignas(32) uint8_t last[32] = {};
      std::memcpy(last, reader->at, static_cast<size_t>(left));
      words = _mm256_load_si256(reinterpret_cast<const __m256i*>(last));
    }
    reader->at += bytes;
    const __m512i word = _mm512_maskz_expand_epi32(wants, _mm512_cvtepu16_epi32(words));
    const __m512i filled = _mm512_mask_or_epi32(read, wants, _mm512_slli_epi32(read, 16), word);
    states = _mm512_mask_mov_epi32(states, used, filled);
    _mm512_mask_cvtepi32_storeu_epi8(symbols + at, used, symbol);
  }
  _mm512_store_si512(reader->states, states);
  return true;
}

}  // namespace kvcake

#endif  // __x86_64__
