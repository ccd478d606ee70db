// AMX: products of whole tiles of 16 rows by 16 columns (Sapphire Rapids and newer). What is not a
// product is AVX-512's.
#include "ops/kernels.h"

#if defined(__x86_64__)

// The intrinsics of GCC 12 read values that they then ignore.
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <type_traits>

#include "ops/attention.h"
#include "base/bf16.h"

#define KVCAKE_ISA                                                                           \
  __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni," \
                        "amx-tile,amx-bf16,amx-int8")))
#define KVCAKE_INLINE KVCAKE_ISA __attribute__((always_inline)) inline

namespace kvcake {
namespace {

constexpr int64_t kBlock = 256;
constexpr int64_t kDepth = 32;
constexpr int64_t kAttendRows = 384;

#include "ops/kernels_avx512_inl.h"

constexpr int64_t kPanel = 2 * kLanes;
constexpr int kWidePanels = 1;
constexpr int kManyPanels = 4;
static_assert(kMultiplyRowsMax * kManyPanels * kPanel * sizeof(float) <= kMultiplyScratchBytes);

// Operands are made of words: two bf16 or four bytes that lie together. A tile's row holds 16 of
// them, and so does a panel's half: a tile of columns is 16 rows of a panel, as it lies in memory.
constexpr int64_t kWord = 4;
constexpr int64_t kTileWords = 16;
constexpr int64_t kTileRows = 16;
constexpr int64_t kRowsTogether = 2 * kTileRows;
constexpr int64_t kPanelStride = kPanel * kWord;

// The intrinsics do not tell the compiler which memory tile instructions read.
KVCAKE_INLINE void CompilerBarrier() { asm volatile("" ::: "memory"); }

// What a thread's tiles hold: 0 and 1 are the sums of up to 16 rows by the panel's two halves, 2
// and 3 those of up to 16 rows more; 4 and 5 are these rows, 6 and 7 the halves. A row's sums are
// added up step by step, in whatever tile it is: their bits do not depend on the rows beside it.
// With no more than 16 rows, 2 and 3 are the scores of two times 16 keys, 5 holds the rows' words
// side by side, and 6 and 7 the keys.
class Products {
 public:
  KVCAKE_ISA ~Products() {
    if (rows_ != 0) _tile_release();
  }

  struct Operands {
    const std::byte* a;
    int64_t a_stride;  // bytes
    int64_t rows;
    const std::byte* b;  // words of one panel
    int64_t words;
    std::byte* c;
    int64_t c_stride;  // bytes
    bool add;
    const std::byte* ahead;  // as many bytes as are read of b are fetched from here on; or nullptr
  };
  // c[rows][kPanel] (+)= a[rows][words] x b, of bytes or of bf16.
  template <bool kInt8>
  KVCAKE_ISA void Multiply(Operands x) {
    const int64_t steps = x.words / kTileWords, rest = x.words % kTileWords;
    CompilerBarrier();
    if (steps > 0) MultiplySteps<kInt8>(x, steps, kTileWords);
    if (rest > 0) {
      x.a += steps * kTileWords * kWord;
      x.b += steps * kTileWords * kPanelStride;
      x.add = x.add || steps > 0;
      x.ahead = nullptr;
      MultiplySteps<kInt8>(x, 1, rest);
    }
    CompilerBarrier();
  }

  // Multiplies bf16 for attention; strides are in elements, a step is kUnit of them.
  KVCAKE_ISA void MultiplyRows(const Element* a, int64_t a_stride, int64_t rows, const Element* b,
                               int64_t steps, float* c, int64_t c_stride, bool add) {
    Multiply<false>({.a = reinterpret_cast<const std::byte*>(a),
                     .a_stride = a_stride * static_cast<int64_t>(sizeof(Element)),
                     .rows = rows,
                     .b = reinterpret_cast<const std::byte*>(b),
                     .words = steps,
                     .c = reinterpret_cast<std::byte*>(c),
                     .c_stride = c_stride * static_cast<int64_t>(sizeof(float)),
                     .add = add,
                     .ahead = nullptr});
  }

  static constexpr int64_t kKeysTogether = 2 * kTileRows;
  // scores[kKeysTogether][rows] of twice 16 keys as they lie in pages, [16][head_dim]: they are the
  // rows of the product, so that none is packed. q: [head_dim / 2][rows] words, up to 16 rows;
  // head_dim is a multiple of 32. The sums' bits are those of MultiplyRows.
  KVCAKE_ISA void ScoreKeys(const uint32_t* q, int64_t rows, int64_t head_dim, const uint16_t* keys,
                            const uint16_t* keys2, float* scores) {
    const int64_t row_bytes = rows * kWord, key_bytes = head_dim / kUnit * kWord;
    Configure(rows, kTileWords);
    CompilerBarrier();
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < head_dim; d += kTileWords * kUnit) {
      _tile_loadd(5, q + d / kUnit * rows, row_bytes);
      _tile_loadd(6, keys + d, key_bytes);
      _tile_loadd(7, keys2 + d, key_bytes);
      _tile_dpbf16ps(2, 6, 5);
      _tile_dpbf16ps(3, 7, 5);
    }
    _tile_stored(2, scores, row_bytes);
    _tile_stored(3, scores + kTileRows * rows, row_bytes);
    CompilerBarrier();
  }

 private:
  struct alignas(64) Config {  // as LDTILECFG reads it
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };

  // Shapes the tiles for up to 32 rows and steps of so many words. That takes as long as a dozen
  // products of tiles, and clears them: what is as it was is left alone.
  KVCAKE_ISA void Configure(int64_t rows, int64_t words) {
    if (rows == rows_ && words == words_) return;
    rows_ = rows;
    words_ = words;
    Config config;
    const auto set = [&config](int tile, int64_t tile_rows, int64_t row_words) {
      config.rows[tile] = static_cast<uint8_t>(tile_rows);
      config.row_bytes[tile] = static_cast<uint16_t>(row_words * kWord);
    };
    const bool two = rows > kTileRows;
    const int64_t first = two ? kTileRows : rows, second = rows - first;
    for (int half = 0; half < 2; ++half) {
      set(half, first, kTileWords);
      set(2 + half, two ? second : kTileRows, two ? kTileWords : rows);
      set(6 + half, words, kTileWords);
    }
    set(4, first, words);
    set(5, two ? second : kTileWords, two ? words : rows);
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
  }

  // Multiplies `steps` of so many words each. What is ahead is shared out to the steps of all rows.
  template <bool kInt8>
  KVCAKE_ISA void MultiplySteps(const Operands& x, int64_t steps, int64_t words) {
    constexpr int64_t kStepLines = kTileWords * kPanelStride / 64;
    const int64_t blocks = (x.rows + kRowsTogether - 1) / kRowsTogether;
    const int64_t lines = x.ahead == nullptr ? 0 : (kStepLines + blocks - 1) / blocks;
    Operands block = x;
    for (int64_t row = 0; row < x.rows; row += kRowsTogether) {
      block.rows = x.rows - row < kRowsTogether ? x.rows - row : kRowsTogether;
      Configure(block.rows, words);
      if (block.rows > kTileRows) {
        MultiplyBlock<kInt8, true>(block, steps, lines);
      } else {
        MultiplyBlock<kInt8, false>(block, steps, lines);
      }
      block.a += kRowsTogether * x.a_stride;
      block.c += kRowsTogether * x.c_stride;
      if (lines > 0) block.ahead += steps * lines * 64;
    }
  }

  // Multiplies up to 16 rows, or with kTwo 17 to 32.
  template <bool kInt8, bool kTwo>
  KVCAKE_ISA static void MultiplyBlock(const Operands& x, int64_t steps, int64_t lines) {
    constexpr int64_t kHalf = kTileWords * kWord;
    const std::byte *a = x.a, *a2 = x.a + kTileRows * x.a_stride, *b = x.b, *ahead = x.ahead;
    std::byte *const c = x.c, *const c2 = x.c + kTileRows * x.c_stride;
    if (x.add) {
      _tile_loadd(0, c, x.c_stride);
      _tile_loadd(1, c + kHalf, x.c_stride);
      if constexpr (kTwo) {
        _tile_loadd(2, c2, x.c_stride);
        _tile_loadd(3, c2 + kHalf, x.c_stride);
      }
    } else {
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (kTwo) {
        _tile_zero(2);
        _tile_zero(3);
      }
    }
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t line = 0; line < lines; ++line, ahead += 64) Fetch<64>(ahead);
      _tile_loadd(6, b, kPanelStride);
      _tile_loadd(4, a, x.a_stride);
      _tile_loadd(7, b + kHalf, kPanelStride);
      if constexpr (kTwo) _tile_loadd(5, a2, x.a_stride);
      if constexpr (kInt8) {
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        if constexpr (kTwo) {
          _tile_dpbsud(2, 5, 6);
          _tile_dpbsud(3, 5, 7);
        }
      } else {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kTwo) {
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      a += kHalf;
      a2 += kHalf;
      b += kTileWords * kPanelStride;
    }
    _tile_stored(0, c, x.c_stride);
    _tile_stored(1, c + kHalf, x.c_stride);
    if constexpr (kTwo) {
      _tile_stored(2, c2, x.c_stride);
      _tile_stored(3, c2 + kHalf, x.c_stride);
    }
  }

  int64_t rows_ = 0;  // as configured; 0: not yet
  int64_t words_ = 0;
};

// 2^n 2^f with a polynomial of f whose relative error, 3e-6, is nothing beside that of the weight's
// rounding to bf16; 1 for 0.
KVCAKE_INLINE V WeightOf(V x) {
  const V t = x * Splat(1.44269504088896341f);
  const V n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const V f = t - n;
  V p = Splat(0.009582852944731712f);
  p = MulAdd(p, f, Splat(0.05590642988681793f));
  p = MulAdd(p, f, Splat(0.24024099111557007f));
  p = MulAdd(p, f, Splat(0.6931241750717163f));
  p = MulAdd(p, f, Splat(1.0f));
  const __mmask16 not_tiny = _mm512_cmp_ps_mask(x, Splat(-87.0f), _CMP_NLT_UQ);  // NaN: is not
  return _mm512_maskz_scalef_ps(not_tiny, p, n);
}

void Multiply(const MultiplyArgs& m);
void MultiplyInt8(const MultiplyInt8Args& m);

#include "ops/kernels_inl.h"

// ---- attention of one token's rows ----

KVCAKE_ISA bool HasFew(const AttendArgs& t) {
  return t.group <= kTileRows && t.head_dim % (kTileWords * kUnit) == 0;
}

// to[rows][kBlock] = from[kKeysTogether][rows], turned.
KVCAKE_INLINE void TurnScores(const float* from, int64_t rows, float* to) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i first = _mm512_mullo_epi32(lane, _mm512_set1_epi32(static_cast<int>(rows)));
  for (int row = 0; row < rows; ++row, to += kBlock) {
    const __m512i at = _mm512_add_epi32(first, _mm512_set1_epi32(row));
    const __m512i vector = _mm512_srli_epi32(at, 4);
    V turned = Splat(0.0f), turned2 = Splat(0.0f);
    for (int i = 0; i < rows; ++i) {
      const __mmask16 here = _mm512_cmpeq_epi32_mask(vector, _mm512_set1_epi32(i));
      turned = _mm512_mask_permutexvar_ps(turned, here, at, Load(from + i * kLanes));
      turned2 = _mm512_mask_permutexvar_ps(turned2, here, at, Load(from + (rows + i) * kLanes));
    }
    Store(to, turned);
    Store(to + kLanes, turned2);
  }
}

KVCAKE_ISA void ScoreFew(const AttendArgs& t, const AttendScratch& s, Products& products,
                         int64_t block, int64_t keys, const KvPlace& next) {
  constexpr int64_t kTogether = Products::kKeysTogether;
  const int64_t dim = t.head_dim, words = dim / kUnit;
  alignas(64) uint32_t q[kTileRows * kAttentionHeadDimMax / kUnit];
  alignas(64) float scores[kTogether * kTileRows];
  for (int64_t row = 0; row < t.group; ++row) {
    for (int64_t word = 0; word < words; ++word) {
      __builtin_memcpy(&q[word * t.group + row], s.q + row * dim + word * kUnit, kWord);
    }
  }
  for (int64_t part = 0; part < keys; part += kTogether) {
    const uint16_t* const next_keys = next.kv.Keys(next.Ahead(part));
    for (int64_t line = 0; line < kTogether * dim; line += 32) Fetch<64>(next_keys + line);
    const uint16_t* const first = t.kv.Keys(block + part);
    // Scores of keys that are not there are taken for masked.
    const bool both = part + kTileRows < keys;
    products.ScoreKeys(q, t.group, dim, first, both ? t.kv.Keys(block + part + kTileRows) : first,
                       scores);
    TurnScores(scores, t.group, s.scores + part);
  }
}

KVCAKE_ISA void AddFew(const AttendArgs& t, const AttendScratch& s, Products& products,
                       int64_t block, int64_t keys, const KvPlace& next, float* sums) {
  for (int64_t part = 0; part < keys; part += kPart) {
    const int64_t n = keys - part < kPart ? keys - part : kPart;
    PackValues(t.kv, block + part, n, t.head_dim, s.values + part * kPanel,
               next.kv.Values(next.Ahead(part)));
  }
  AddPackedValues(s, products, s.p, t.group, 0, keys, sums, t.head_dim);
}

// ---- products with panels ----

// Some rows' words stay in the second-level cache, which feeds the tiles at two thirds of their
// rate, while these words of the panels pass by; from the third level it would be a third.
template <typename Args>
KVCAKE_ISA void MultiplyPanels(const Args& m) {
  constexpr bool kInt8 = std::is_same_v<Args, MultiplyInt8Args>;
  constexpr int64_t kBlockRows = 256, kBlockWords = 512;
  constexpr int64_t kElementBytes = kInt8 ? sizeof(Quantized) : sizeof(Element);
  const int64_t row_bytes = m.a_stride * kElementBytes, words = m.k * kElementBytes / kWord;
  const int64_t c_stride = m.panels * kPanel * kWord, panel_bytes = words * kPanelStride;
  const auto* b = reinterpret_cast<const std::byte*>(m.b);
  Products products;
  for (int64_t row = 0; row < m.rows; row += kBlockRows) {
    const int64_t rows = m.rows - row < kBlockRows ? m.rows - row : kBlockRows;
    for (int64_t word = 0; word < words; word += kBlockWords) {
      const int64_t n = words - word < kBlockWords ? words - word : kBlockWords;
      for (int64_t panel = 0; panel < m.panels; ++panel) {
        const std::byte* part = b + panel * panel_bytes + word * kPanelStride;
        const std::byte* ahead = panel + 1 < m.panels ? part + panel_bytes
                                 : word + n < words   ? b + (word + n) * kPanelStride
                                 : row + rows == m.rows && m.more ? b + m.panels * panel_bytes
                                                                  : nullptr;
        products.template Multiply<kInt8>(
            {.a = m.a + row * row_bytes + word * kWord,
             .a_stride = row_bytes,
             .rows = rows,
             .b = part,
             .words = n,
             .c = reinterpret_cast<std::byte*>(m.c) + row * c_stride + panel * kPanel * kWord,
             .c_stride = c_stride,
             .add = word > 0,
             .ahead = ahead});
      }
    }
  }
}

void Multiply(const MultiplyArgs& m) { MultiplyPanels(m); }

void MultiplyInt8(const MultiplyInt8Args& m) {
  MultiplyPanels(m);
  ScaleBack(m);
}

}  // namespace

const Kernels* AmxKernels() { return &kKernels; }

}  // namespace kvcake

#else

namespace kvcake {
const Kernels* AmxKernels() { return nullptr; }
}  // namespace kvcake

#endif
