// The operations between the products, row by row: each row's result depends on that row alone.
// Sizes are multiples of 16.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "ops/compute.h"
#include "ops/packed_matrix.h"

namespace kvcake {

struct NormWeights {
  const float* weight = nullptr;
  const float* bias = nullptr;  // LayerNorm only
  float eps = 0;
};

// out[row] = x[row] / sqrt(mean(x[row]^2) + eps) * weight; x is [out.rows][out.k] f32 without gaps.
void RmsNorm(const Compute& compute, const float* x, const NormWeights& norm,
             const Activations& out);

// The rows that RmsNorm would leave in `out`, for products. On CUDA it leaves a few rows to the
// products, which read x: what changes it comes behind those, and none of them adds to it.
Activations LazyRmsNorm(const Compute& compute, const float* x, const NormWeights& norm,
                        const Activations& out);

// out[row] = (x[row] - mean) / sqrt(variance + eps) * weight + bias, of the same shapes.
void LayerNorm(const Compute& compute, const float* x, const NormWeights& norm,
               const Activations& out);

// table[row] = cos, then sin, of position * inv_freq, times scale: [rows][2][inv_freq.size()] f32.
void RopeTable(const Compute& compute, std::span<const int32_t> positions,
               std::span<const float> inv_freq, float scale, float* table);

// One row of the fused projection: queries, keys, values, [heads + 2 * kv_heads][head_dim] f32.
struct QkvShape {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
};
// What RopeAndStoreKv multiplies queries by.
inline float QueryScale(const QkvShape& shape) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
}

// Normalizes every query head by `q` and every key head by `k` in place: RmsNorm over head_dim.
// `qkv` is whole rows of the projection.
void NormHeads(const Compute& compute, const QkvShape& shape, const NormWeights& q,
               const NormWeights& k, std::span<float> qkv);

// Where the keys and values of one row go at the first layer: K at `k`, V at `v`. k == nullptr:
// nowhere, the pages hold them already.
struct KvSlot {
  uint16_t* k = nullptr;
  uint16_t* v = nullptr;
};

// From the first layer's slots to one layer's, and from one KV head to the next, in elements.
struct KvStride {
  int64_t layer = 0;
  int64_t head = 0;
};

// Rotates the queries in place (halves of a head rotate together, as in Hugging Face
// transformers) and scales them by 1/sqrt(head_dim); rotates the keys and stores keys and values
// as bf16.
void RopeAndStoreKv(const Compute& compute, const QkvShape& shape, float* qkv, const float* table,
                    std::span<const KvSlot> slots, const KvStride& stride);

// out[row] = the embedding of tokens[row], [rows][table.k()] f32. The tokens are rows of the table.
void Embed(const Compute& compute, const PackedMatrix& table, std::span<const int32_t> tokens,
           float* out);

// out[i] = x[rows[i]], rows of `k` f32 without gaps.
void TakeRows(const Compute& compute, const float* x, std::span<const int32_t> rows, int64_t k,
              float* out);

}  // namespace kvcake
