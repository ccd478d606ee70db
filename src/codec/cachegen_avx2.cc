#include <algorithm>
#include <cstring>

#include "codec/cachegen_kernels.h"
#include "codec/cachegen_tables.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define KVCAKE_ISA __attribute__((target("avx2,popcnt")))

namespace kvcake {
namespace {

// For each mask of eight lanes: which of the next words goes to each lane that is set.
struct Expansions {
  constexpr Expansions() {
    for (int mask = 0; mask < 256; ++mask) {
      uint32_t next = 0;
      for (int lane = 0; lane < 8; ++lane) of[mask][lane] = (mask >> lane & 1) != 0 ? next++ : 0;
    }
  }
  alignas(64) uint32_t of[256][8] = {};
};
constexpr Expansions kExpansions;

KVCAKE_ISA inline __m256i SlotsOf(__m256i states) {
  return _mm256_and_si256(states, _mm256_set1_epi32(kRansTotal - 1));
}

// The symbols of 16 slots, as 16 bits each: how many but the first begin no later than the slot.
// Comparing with each is faster than a binary search, whose steps would gather from memory.
KVCAKE_ISA inline __m256i SymbolsOf(const RansTable& table, const __m256i* states) {
  const __m256i slots =
      _mm256_permute4x64_epi64(_mm256_packus_epi32(SlotsOf(states[0]), SlotsOf(states[1])), 0xd8);
  __m256i symbols = _mm256_setzero_si256();
  for (int s = 1; s < table.symbols; ++s) {
    const __m256i first = _mm256_set1_epi16(static_cast<int16_t>(table.firsts[s]));
    // Adds -1 where the symbol begins behind the slot.
    symbols = _mm256_add_epi16(symbols, _mm256_cmpgt_epi16(first, slots));
  }
  return _mm256_add_epi16(symbols, _mm256_set1_epi16(static_cast<int16_t>(table.symbols - 1)));
}

// Takes the symbols out of eight states, of which those beyond `lanes` stay. False when the words
// end.
KVCAKE_ISA inline bool Advance(RansReader* reader, const RansTable& table, uint64_t lanes,
                               __m128i symbols, __m256i* states) {
  const __m256i entry = _mm256_i32gather_epi32(reinterpret_cast<const int*>(table.of),
                                               _mm256_cvtepu16_epi32(symbols), 4);
  const __m256i kept =
      _mm256_mullo_epi32(_mm256_srli_epi32(entry, 16), _mm256_srli_epi32(*states, kRansBits));
  const __m256i first = _mm256_and_si256(entry, _mm256_set1_epi32(0xffff));
  const __m256i read = _mm256_sub_epi32(_mm256_add_epi32(kept, SlotsOf(*states)), first);
  const __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(read, 16), _mm256_setzero_si256());
  const __m256i used = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(lanes)),
                                          _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const __m256i wants = _mm256_and_si256(low, used);
  const auto mask = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(wants)));
  const auto bytes = static_cast<int64_t>(sizeof(uint16_t) * _mm_popcnt_u32(mask));
  const int64_t left = reader->end - reader->at;
  if (bytes > left) return false;
  __m128i words;
  if (left >= 16) {
    words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(reader->at));
  } else {
    alignas(16) uint8_t last[16] = {};
    std::memcpy(last, reader->at, static_cast<size_t>(left));
    words = _mm_load_si128(reinterpret_cast<const __m128i*>(last));
  }
  reader->at += bytes;
  const __m256i to = _mm256_load_si256(reinterpret_cast<const __m256i*>(kExpansions.of[mask]));
  const __m256i word = _mm256_permutevar8x32_epi32(_mm256_cvtepu16_epi32(words), to);
  const __m256i filled = _mm256_or_si256(_mm256_slli_epi32(read, 16), word);
  *states = _mm256_blendv_epi8(*states, _mm256_blendv_epi8(read, filled, wants), used);
  return true;
}

}  // namespace

KVCAKE_ISA bool DecodeRansAvx2(RansReader* reader, const RansTable& table, uint64_t count,
                               uint8_t* symbols) {
  auto* const kept = reinterpret_cast<__m256i*>(reader->states);
  __m256i states[2] = {_mm256_load_si256(kept), _mm256_load_si256(kept + 1)};
  bool good = true;
  for (uint64_t at = 0; good && at < count; at += kRansLanes) {
    const uint64_t lanes = std::min(kRansLanes, count - at);
    const __m256i symbol = SymbolsOf(table, states);
    const __m128i low = _mm256_castsi256_si128(symbol);
    const __m128i high = _mm256_extracti128_si256(symbol, 1);
    good = Advance(reader, table, lanes, low, &states[0]) &&
           Advance(reader, table, lanes > 8 ? lanes - 8 : 0, high, &states[1]);
    const __m128i bytes = _mm_packus_epi16(low, high);
    if (lanes == kRansLanes) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(symbols + at), bytes);
    } else {
      alignas(16) uint8_t some[kRansLanes];
      _mm_store_si128(reinterpret_cast<__m128i*>(some), bytes);
      std::memcpy(symbols + at, some, lanes);
    }
  }
  _mm256_store_si256(kept, states[0]);
  _mm256_store_si256(kept + 1, states[1]);
  return good;
}

}  // namespace kvcake

#endif  // __x86_64__
