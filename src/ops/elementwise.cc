#include "ops/elementwise.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/cuda_kernels.h"
#include "ops/for_each_row.h"
#include "ops/kernels.h"

namespace kvcake {

void RmsNorm(const Compute& compute, const float* x, const NormWeights& norm,
             const Activations& out) {
  CHECK(out.k % 16 == 0);
  if (compute.cuda() != nullptr) return cuda::RmsNorm(*compute.cuda(), x, norm, out);
  const int64_t row_bytes = out.stride * ActivationBytes(compute.path());
  ForEachRow(compute, out.rows, [&](int64_t row) {
    compute.kernels().rms_norm(x + row * out.k, norm.weight, out.k, norm.eps,
                               out.data + row * row_bytes);
  });
}

Activations LazyRmsNorm(const Compute& compute, const float* x, const NormWeights& norm,
                        const Activations& out) {
  if (compute.cuda() != nullptr && cuda::ProductsNormalize(*compute.cuda(), out)) {
    Activations lazy = out;
    lazy.unnormalized = x;
    lazy.norm_weight = norm.weight;
    lazy.norm_eps = norm.eps;
    return lazy;
  }
  RmsNorm(compute, x, norm, out);
  return out;
}

void LayerNorm(const Compute& compute, const float* x, const NormWeights& norm,
               const Activations& out) {
  CHECK(out.k % 16 == 0);
  if (compute.cuda() != nullptr) return cuda::LayerNorm(*compute.cuda(), x, norm, out);
  const int64_t row_bytes = out.stride * ActivationBytes(compute.path());
  ForEachRow(compute, out.rows, [&](int64_t row) {
    compute.kernels().layer_norm(x + row * out.k, norm.weight, norm.bias, out.k, norm.eps,
                                 out.data + row * row_bytes);
  });
}

void RopeTable(const Compute& compute, std::span<const int32_t> positions,
               std::span<const float> inv_freq, float scale, float* table) {
  if (compute.cuda() != nullptr) {
    return cuda::RopeTable(*compute.cuda(), positions, inv_freq, scale, table);
  }
  const int64_t half = static_cast<int64_t>(inv_freq.size());
  ForEachRow(compute, static_cast<int64_t>(positions.size()), [&](int64_t row) {
    float* cos = table + row * 2 * half;
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(positions[row]) * inv_freq[i];
      cos[i] = std::cos(angle) * scale;
      cos[half + i] = std::sin(angle) * scale;
    }
  });
}

void NormHeads(const Compute& compute, const QkvShape& shape, const NormWeights& q,
               const NormWeights& k, std::span<float> qkv) {
  CHECK(shape.head_dim % 16 == 0);
  if (compute.cuda() != nullptr) return cuda::NormHeads(*compute.cuda(), shape, q, k, qkv);
  const int64_t dim = shape.head_dim, row_size = (shape.heads + 2 * shape.kv_heads) * dim;
  const auto rms_norm = compute.kernels().rms_norm_f32;
  ForEachRow(compute, static_cast<int64_t>(qkv.size()) / row_size, [&](int64_t row) {
    float* head = qkv.data() + row * row_size;
    for (int h = 0; h < shape.heads; ++h, head += dim) rms_norm(head, q.weight, dim, q.eps);
    for (int h = 0; h < shape.kv_heads; ++h, head += dim) rms_norm(head, k.weight, dim, k.eps);
  });
}

void RopeAndStoreKv(const Compute& compute, const QkvShape& shape, float* qkv, const float* table,
                    std::span<const KvSlot> slots, const KvStride& stride) {
  CHECK(shape.head_dim % 16 == 0);
  if (compute.cuda() != nullptr) {
    return cuda::RopeAndStoreKv(*compute.cuda(), shape, qkv, table, slots, stride);
  }
  const int64_t dim = shape.head_dim, row_size = (shape.heads + 2 * shape.kv_heads) * dim;
  const float scale = QueryScale(shape);
  const Kernels& kernels = compute.kernels();
  ForEachRow(compute, static_cast<int64_t>(slots.size()), [&](int64_t row) {
    const float* rotation = table + row * dim;
    float* q = qkv + row * row_size;
    for (int h = 0; h < shape.heads; ++h) kernels.rotate(q + h * dim, rotation, dim, scale);
    const KvSlot& slot = slots[row];
    if (slot.k == nullptr) return;
    float* k = q + shape.heads * dim;
    const float* v = k + shape.kv_heads * dim;
    for (int h = 0; h < shape.kv_heads; ++h) {
      kernels.rotate(k + h * dim, rotation, dim, 1.0f);
      kernels.store_bf16(k + h * dim, dim, slot.k + stride.layer + h * stride.head);
      kernels.store_bf16(v + h * dim, dim, slot.v + stride.layer + h * stride.head);
    }
  });
}

void Embed(const Compute& compute, const PackedMatrix& table, std::span<const int32_t> tokens,
           float* out) {
  if (compute.cuda() != nullptr) return cuda::Embed(*compute.cuda(), table, tokens, out);
  compute.pool().ParallelFor(std::ssize(tokens), [&](int64_t row, int) {
    table.CopyRow(tokens[row], out + row * table.k());
  });
}

void TakeRows(const Compute& compute, const float* x, std::span<const int32_t> rows, int64_t k,
              float* out) {
  if (compute.cuda() != nullptr) return cuda::TakeRows(*compute.cuda(), x, rows, k, out);
  for (const int32_t row : rows) out = std::copy_n(x + row * k, k, out);
}

}  // namespace kvcake
