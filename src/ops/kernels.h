// The inner loops, once per numeric path. Private to this room.
//
// kernels_{amx,avx512,avx2,neon,portable}.cc define the vector type of their path and include
// kernels_inl.h for what is the same on all of them. Every function there carries its target as an
// attribute, so a machine without the instructions never meets them, and none of the standard
// library is compiled for them. They are compiled without contraction: an FMA happens where it is
// written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/page_pool.h"

namespace kvcake {

// c[rows][panels * panel_width] = a[rows][k] x panels^T.
struct MultiplyArgs {
  const std::byte* a = nullptr;
  int64_t a_stride = 0;         // elements
  int64_t rows = 0;             // 1..kMultiplyRowsMax
  const uint16_t* b = nullptr;  // panels one after the other, as PackedMatrix::Panel
  int64_t panels = 0;           // 1, wide_panels for a single row, or up to many_panels for more
  bool more = false;            // the panel behind these is multiplied next
  int64_t k = 0;
  float* c = nullptr;            // [rows][panels * panel_width] without gaps
  std::byte* scratch = nullptr;  // kMultiplyScratchBytes
};
constexpr int64_t kMultiplyRowsMax = 512;

// c[rows][panels * panel_width] = a x panels^T for quantised rows and weights, scaled back. Sums
// are exact integers, so they do not depend on their order.
struct MultiplyInt8Args {
  const std::byte* a = nullptr;  // of quantize_row
  int64_t a_stride = 0;          // bytes
  const float* row_scales = nullptr;
  const float* row_sums = nullptr;
  int64_t rows = 0;            // 1..kMultiplyRowsMax
  const uint8_t* b = nullptr;  // panels one after the other, as PackedMatrix::Int8Panel
  const float* column_scales = nullptr;
  int64_t panels = 0;            // as of MultiplyArgs
  bool more = false;             // the panel behind these is multiplied next
  int64_t k = 0;                 // at most kInt8DepthMax (ops/packed_matrix.h)
  float* c = nullptr;            // [rows][panels * panel_width] without gaps
  std::byte* scratch = nullptr;  // kMultiplyScratchBytes
};
// Weights are held as what they are above -kInt8Offset.
constexpr int kInt8Offset = 128;
// Rows whose largest magnitude is below this are zero: its inverse might not be finite.
constexpr float kSmallestInt8Row = 1e-30f;

constexpr int64_t kMultiplyScratchBytes = 256 << 10;

// Starts to read kBytes from `from` on.
template <int kBytes>
__attribute__((always_inline)) inline void Fetch(const void* from) {
  for (int i = 0; i < kBytes; i += 64) {
    __builtin_prefetch(static_cast<const std::byte*>(from) + i, 0, 2);
  }
}

// The keys and values of one KV head of one sequence at one layer.
struct KvView {
  const PagePool* pool = nullptr;
  std::span<const PageId> pages;
  int layer = 0;
  int kv_head = 0;

  // Begins at the token at `position`; at least as many tokens follow without a gap as remain in
  // its group of 16. [token][head_dim] bf16.
  const uint16_t* Keys(int64_t position) const {
    const KvLayout& layout = pool->layout();
    return pool->Slab(pages[position / layout.chunk_tokens], layer) +
           (static_cast<int64_t>(kv_head) * layout.chunk_tokens + position % layout.chunk_tokens) *
               layout.head_dim;
  }
  const uint16_t* Values(int64_t position) const {
    return Keys(position) + pool->layout().plane_elements();
  }
};

// One tile of attention: consecutive queries of the heads that share a KV head.
struct AttendArgs {
  const float* q = nullptr;  // [tokens][q_stride], the group's heads first
  int64_t q_stride = 0;
  int64_t tokens = 0;  // tokens * group is at most attend_rows
  int64_t group = 0;
  int64_t head_dim = 0;
  int64_t start = 0;  // position of the first token
  KvView kv;
  // Where the worker goes on after this; fetched meanwhile. Without pages: nowhere.
  KvView next_kv = {};
  int64_t next_from = 0;
  const float* alibi = nullptr;  // [group] slopes; nullptr: none
  // to < 0: the whole result, to `out`. Else the keys at [from, to) only, whole blocks of one
  // partial: they are added to `sums` [tokens * group][SumsStride(head_dim)], which start with the
  // partial.
  int64_t from = 0;
  int64_t to = -1;
  float* sums = nullptr;
  std::byte* out = nullptr;  // [tokens][out_stride], the group's heads first
  int64_t out_stride = 0;
  std::byte* scratch = nullptr;  // kAttendScratchBytes
};
constexpr int64_t kAttendScratchBytes = 2 << 20;

// A row of sums: the weighted values [head_dim, padded to 32], then the largest score, then the
// sum of the weights.
constexpr int64_t PaddedHeadDim(int64_t head_dim) { return (head_dim + 31) / 32 * 32; }
constexpr int64_t SumsStride(int64_t head_dim) { return PaddedHeadDim(head_dim) + 16; }

// Attention for a few rows that see the same keys (decoding), straight from the pages. Sums are
// those of packed operands, to the bit. `next` is fetched, as many bytes as are read.
template <typename Element>
struct FewRows {
  // scores[rows][a vector] of as many keys.
  void (*score)(const Element* q, const uint16_t* keys, const uint16_t* next, int64_t head_dim,
                float* scores, int64_t stride);
  // sums[rows][two vectors] += weights[rows][keys] x values[keys][two vectors of head_dim], of
  // which `dims` dimensions are there.
  void (*add_values)(const Element* weights, int64_t weights_stride, const uint16_t* values,
                     const uint16_t* next, int64_t keys, int64_t head_dim, int64_t dims,
                     float* sums, int64_t stride);
};

struct Kernels {
  int int8_unit;    // consecutive k of one column that lie together in an int8 panel
  int panel_width;  // columns of a weight panel; half of them are gate columns in GateUp
  // A single row (decoding) goes through `multiply` by so many panels at once that enough chains of
  // additions are in flight.
  int wide_panels;
  // Many rows (a prompt) go through it by as many as make it worth reading them once.
  int many_panels;
  int64_t attention_block;  // keys that `attend` takes at a time, at absolute positions
  int64_t attend_rows;      // the most rows of AttendArgs

  void (*multiply)(const MultiplyArgs& args);
  void (*multiply_int8)(const MultiplyInt8Args& args);
  // out = round(x / *scale) in the path's quantised type (QuantizedBytes), of magnitude 127 at
  // most; *sum of them. A row that is not finite gets the scale NaN. x: n elements, a multiple
  // of 16.
  void (*quantize_row)(const std::byte* x, int64_t n, std::byte* out, float* scale, float* sum);
  // out[row] = silu(gate) * up for one panel, [rows][c_stride]; gate columns come first.
  void (*swiglu)(const float* c, int64_t c_stride, int64_t rows, std::byte* out,
                 int64_t out_stride);
  // out[row] = gelu(c) for the first `columns` of one panel, a multiple of 16.
  void (*gelu)(const float* c, int64_t c_stride, int64_t rows, int64_t columns, std::byte* out,
               int64_t out_stride);
  void (*attend)(const AttendArgs& args);
  // total += part, rows of sums.
  void (*merge_sums)(float* total, const float* part, int64_t rows, int64_t head_dim);
  // out[head_dim] = the attention result of one row of sums.
  void (*finish_sums)(const float* sums, int64_t head_dim, std::byte* out);
  // out = x / sqrt(mean(x^2) + eps) * weight, n values.
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, std::byte* out);
  // The same in place, staying f32.
  void (*rms_norm_f32)(float* x, const float* weight, int64_t n, float eps);
  // out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, n values.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, int64_t n, float eps,
                     std::byte* out);
  // Rotates x[head_dim] by table [cos, sin][head_dim / 2] and multiplies by scale.
  void (*rotate)(float* x, const float* table, int64_t head_dim, float scale);
  void (*store_bf16)(const float* x, int64_t n, uint16_t* out);
};

// nullptr where this build has no such path.
const Kernels* AmxKernels();
const Kernels* Avx512Kernels();
const Kernels* Avx2Kernels();
const Kernels* NeonKernels();  // the same bits as Avx2Kernels
const Kernels* PortableKernels();

}  // namespace kvcake
