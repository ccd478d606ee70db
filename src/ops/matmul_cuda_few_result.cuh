// A product of few rows as its kernel (matmul_cuda_few.cuh) takes it, the columns of its tiles, and
// what becomes of their sums.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda_activations.cuh"
#include "ops/matmul_cuda_few.h"

namespace kvcake::cuda {

constexpr int kTileRows = 16;  // of the weights: what mma.sync has
constexpr int kHalfRows = kTileRows / 2;

struct FewRowsProduct {
  const uint16_t* a;  // [rows][a_stride]
  const uint16_t* w;  // [n][k]
  const float* bias;  // [n], or nullptr
  int64_t a_stride;
  int rows, n, k;
  ProductOut out;
  // Instead of a: [rows][k], and what RmsNorm needs.
  const float* unnormalized = nullptr;
  const float* norm_weight = nullptr;
  float norm_eps = 0;

  __host__ __device__ int tiles() const { return (n + kTileRows - 1) / kTileRows; }
  __host__ __device__ bool gated() const { return out.kind == ProductOut::Kind::kSwiGlu; }
  // In shared memory: an odd number of 16 bytes, too.
  __host__ __device__ int a_row_elements() const { return (k + 63) / 64 * 64 + 8; }
  __host__ __device__ bool rotated() const { return out.kind == ProductOut::Kind::kQkv; }
  // The first half of a tile's columns, and the second: SwiGLU's gates, and what they let through;
  // a head's dimensions, and those that rotate with them.
  __device__ int Low(int tile, int i) const {
    if (rotated()) {
      const int of_head = out.shape.head_dim / kTileRows;
      return tile / of_head * out.shape.head_dim + tile % of_head * kHalfRows + i;
    }
    return tile * (gated() ? kHalfRows : kTileRows) + i;
  }
  __device__ int High(int tile, int i) const {
    const int distance = gated() ? n / 2 : rotated() ? out.shape.head_dim / 2 : kHalfRows;
    return Low(tile, i) + distance;
  }
};

// What a thread has of a tile for one token: one of its low columns of the result and a high one,
// which SwiGLU makes one, and which rotate together.
class ResultColumns {
 public:
  __device__ ResultColumns(const FewRowsProduct& p, int tile, int i)
      : p_(p), low_(p.Low(tile, i)), high_(p.High(tile, i)) {}

  // What is known of a token before its sums are.
  struct Before {
    float2 by = {0, 0};  // what the result is added to; cosine and sine of the rotation
    KvSlot slot = {};
  };

  __device__ Before Load(int token) const {
    Before before;
    if (token >= p_.rows) return before;
    if (p_.out.kind == ProductOut::Kind::kAdd) {
      const float* row = static_cast<const float*>(p_.out.data) + token * p_.out.stride;
      if (low_ < p_.n) before.by.x = __ldcg(row + low_);
      if (high_ < p_.n) before.by.y = __ldcg(row + high_);
    }
    if (p_.rotated()) {
      const int dim = p_.out.shape.head_dim;
      const float* cos = p_.out.rope + token * dim + low_ % dim;
      before.by = {cos[0], cos[dim / 2]};
      before.slot = p_.out.slots[token];
    }
    return before;
  }

  __device__ void Store(int token, const float2& sums, const Before& before) const {
    if (token >= p_.rows) return;
    const int64_t at = token * p_.out.stride;
    if (p_.gated()) {
      if (low_ >= p_.n / 2) return;
      const float gate = Biased(low_, Rounded(sums.x)), up = Biased(high_, Rounded(sums.y));
      Bf16Out()[at + low_] = __float2bfloat16_rn(up * SiluOf(gate));
      return;
    }
    if (p_.rotated()) return StoreHeads(at, {Biased(low_, sums.x), Biased(high_, sums.y)}, before);
    StoreOne(at, low_, sums.x, before.by.x);
    StoreOne(at, high_, sums.y, before.by.y);
  }

 private:
  __device__ static float Rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
  __device__ float Biased(int column, float x) const {
    return p_.bias == nullptr ? x : x + p_.bias[column];
  }
  __device__ __nv_bfloat16* Bf16Out() const { return static_cast<__nv_bfloat16*>(p_.out.data); }

  __device__ void StoreOne(int64_t at, int column, float sum, float old) const {
    if (column >= p_.n) return;
    if (p_.out.kind == ProductOut::Kind::kGelu) {
      Bf16Out()[at + column] = __float2bfloat16_rn(GeluOf(Biased(column, Rounded(sum))));
      return;
    }
    const float value = Biased(column, sum);
    static_cast<float*>(p_.out.data)[at + column] =
        p_.out.kind == ProductOut::Kind::kAdd ? old + value : value;
  }

  // Two dimensions of a head of queries, keys or values.
  __device__ void StoreHeads(int64_t at, float2 x, const Before& before) const {
    const auto& [heads, kv_heads, dim] = p_.out.shape;
    const int head = low_ / dim, d = low_ % dim;
    if (head < heads + kv_heads) x = Rotated(x.x, x.y, before.by.x, before.by.y);
    if (head < heads) {
      float* const q = static_cast<float*>(p_.out.data) + at;
      q[low_] = x.x * p_.out.query_scale;
      q[high_] = x.y * p_.out.query_scale;
      return;
    }
    if (before.slot.k == nullptr) return;
    const bool is_key = head < heads + kv_heads;
    auto* const to = reinterpret_cast<__nv_bfloat16*>(is_key ? before.slot.k : before.slot.v) +
                     p_.out.kv_stride.layer + (head - heads) % kv_heads * p_.out.kv_stride.head + d;
    to[0] = __float2bfloat16_rn(x.x);
    to[dim / 2] = __float2bfloat16_rn(x.y);
  }

  const FewRowsProduct& p_;
  const int low_, high_;
};

}  // namespace kvcake::cuda
