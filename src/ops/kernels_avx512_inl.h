// What AVX-512 does on each path that has it; included once by each of kernels_{avx512,amx}.cc,
// inside their anonymous namespace, after they have defined KVCAKE_ISA, KVCAKE_INLINE, kBlock and
// kDepth.

using V = __m512;
using Element = uint16_t;
using Quantized = int8_t;
using Int8Weight = uint8_t;
constexpr int kLanes = 16;
constexpr int kUnit = 2;
constexpr int kInt8Unit = 4;

KVCAKE_INLINE V Load(const float* x) { return _mm512_loadu_ps(x); }
KVCAKE_INLINE void Store(float* to, V x) { _mm512_storeu_ps(to, x); }
KVCAKE_INLINE V Splat(float x) { return _mm512_set1_ps(x); }
KVCAKE_INLINE V MulAdd(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
KVCAKE_INLINE V Max(V a, V b) { return _mm512_max_ps(a, b); }
KVCAKE_INLINE V Abs(V x) { return _mm512_abs_ps(x); }
KVCAKE_INLINE float ReduceMax(V x) { return _mm512_reduce_max_ps(x); }
KVCAKE_INLINE float ReduceAdd(V x) { return _mm512_reduce_add_ps(x); }
KVCAKE_INLINE void StoreBf16(uint16_t* to, V x) {
  const __m256i bits = (__m256i)_mm512_cvtneps_pbh(x);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
}
KVCAKE_INLINE void StoreElement(Element* to, V x) { StoreBf16(to, x); }
KVCAKE_INLINE V LoadElement(const Element* x) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
// The low bytes of `shifted` hold the values.
KVCAKE_INLINE void StoreQuantized(Quantized* to, V shifted) {
  const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_castps_si512(shifted));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}
KVCAKE_INLINE V LoadInt32(const int32_t* x, int32_t minus) {
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(x), _mm512_set1_epi32(minus)));
}
// p * 2^n, where the low bits of `shifted` hold n.
KVCAKE_INLINE V ShiftExponent(V p, V shifted) {
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), n));
}

KVCAKE_INLINE __m512i LoadBits(const uint16_t* x) { return _mm512_loadu_si512(x); }

// Transposes 16 x 16 pairs: x[key] holds 16 pairs of dimensions; y[pair] 16 keys.
KVCAKE_INLINE void Transpose(const __m512i x[16], __m512i y[16]) {
  __m512i t[16], u[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // u[4 * g + j] holds, in each 128-bit lane l, pair 4 * l + j of keys [4g, 4g + 4).
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(u[j], u[4 + j], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(u[j], u[4 + j], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0xdd);
    y[j] = _mm512_shuffle_i32x4(a, c, 0x88);
    y[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
    y[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
    y[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

// Keys beyond `keys` in their group of 16 are packed too: the page holds something there.
KVCAKE_ISA void PackKeys(const KvView& kv, int64_t block, int64_t keys, int64_t head_dim,
                         Element* packed, const uint16_t* next) {
  for (int64_t key = 0; key < keys; key += 16) {
    const uint16_t* from = kv.Keys(block + key);
    Element* to = packed + key / 32 * 32 * head_dim + key % 32 * 2;
    for (int64_t d = 0; d < head_dim; d += 32) {
      const int64_t pairs = head_dim - d < 32 ? 8 : 16;
      const __mmask16 mask = pairs == 16 ? 0xffff : 0x00ff;
      __m512i rows[16], columns[16];
      for (int i = 0; i < 16; ++i) {
        rows[i] = _mm512_maskz_loadu_epi32(mask, from + i * head_dim + d);
        Fetch<64>(next + (key + i) * head_dim + d);
      }
      Transpose(rows, columns);
      for (int i = 0; i < pairs; ++i) _mm512_storeu_si512(to + (d / 2 + i) * 64, columns[i]);
    }
  }
}

KVCAKE_ISA void PackValues(const KvView& kv, int64_t block, int64_t keys, int64_t head_dim,
                           Element* packed, const uint16_t* next) {
  const int64_t padded = (head_dim + 31) / 32 * 32;
  const uint16_t* from = nullptr;
  for (int64_t key = 0; key < keys; key += 2, from += 2 * head_dim) {
    if (key % 16 == 0) from = kv.Values(block + key);
    for (int64_t d = 0; d < padded; d += 16) {
      __m512i pair = _mm512_setzero_si512();
      if (d < head_dim) {
        const auto* even = reinterpret_cast<const __m256i*>(from + d);
        const auto* odd = reinterpret_cast<const __m256i*>(from + head_dim + d);
        pair =
            _mm512_or_si512(_mm512_cvtepu16_epi32(_mm256_loadu_si256(even)),
                            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(odd)), 16));
      }
      _mm512_storeu_si512(packed + d / 32 * 32 * kBlock + key / 2 * 64 + d % 32 * 2, pair);
      Fetch<64>(next + key * head_dim + 2 * d);
    }
  }
}

// to = kDepth keys of a panel, of which those from `keys` on are zeroed.
KVCAKE_ISA void MaskTail(const Element* panel, int64_t keys, Element* to) {
  for (int64_t key = 0; key < kDepth; key += kUnit, panel += 64, to += 64) {
    const __m512i mask = _mm512_set1_epi32(key + 1 < keys ? -1 : key < keys ? 0xffff : 0);
    _mm512_storeu_si512(to, _mm512_and_si512(LoadBits(panel), mask));
    _mm512_storeu_si512(to + 32, _mm512_and_si512(LoadBits(panel + 32), mask));
  }
}
