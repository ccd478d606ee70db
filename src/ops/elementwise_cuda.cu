// A row's result depends on that row alone: sums are in an order that follows from its length.
#include <cuda_bf16.h>

#include <cmath>
#include <type_traits>

#include "base/check.h"
#include "ops/cuda_activations.cuh"
#include "ops/cuda_instructions.cuh"
#include "ops/cuda_kernels.h"
#include "ops/cuda_launch.h"
#include "ops/cuda_warp.cuh"

namespace kvcake::cuda {
namespace {

constexpr int kThreads = 256;

// Sums the values of a block; every thread gets the sum.
template <int kOfThreads = kThreads>
__device__ float BlockSum(float value) {
  __shared__ float warps[kOfThreads / kWarp];
  value = WarpSum(value);
  __syncthreads();  // those of the sum before have been read
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kOfThreads / kWarp; ++warp) sum += warps[warp];
  return sum;
}

__device__ void StoreBf16x4(float4 x, __nv_bfloat16* out) {
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(out);
  pairs[0] = __floats2bfloat162_rn(x.x, x.y);
  pairs[1] = __floats2bfloat162_rn(x.z, x.w);
}

// Columns [at, at + 8) of a row of sums in bf16, and their bias, where there is one.
__device__ void LoadSums(const uint16_t* row, const float* bias, int64_t at, float (&x)[8]) {
  const uint4 bits = *reinterpret_cast<const uint4*>(row + at);
  const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(pairs[i] << 16);
    x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000);
  }
  if (bias == nullptr) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] += bias[at + i];
}

// By an intrinsic: of an assignment the compiler makes four stores.
__device__ void StoreBf16x8(const float (&x)[8], __nv_bfloat16* out) {
  __stwb(reinterpret_cast<uint4*>(out), make_uint4(PackBf16(x[0], x[1]), PackBf16(x[2], x[3]),
                                                   PackBf16(x[4], x[5]), PackBf16(x[6], x[7])));
}

__device__ float4 Scaled(const float4& v, float scale, const float4& w) {
  return {v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w};
}

// A block a row, of any length.
__global__ void RmsNormRows(const float* x, const float* weight, float eps, int64_t k,
                            __nv_bfloat16* out, int64_t out_stride) {
  BeginEarly();
  const auto* row = reinterpret_cast<const float4*>(x + blockIdx.x * k);
  const auto* weights = reinterpret_cast<const float4*>(weight);
  float squares = 0;
  for (int64_t i = threadIdx.x; i < k / 4; i += kThreads) {
    const float4 v = row[i];
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  const float scale = 1.0f / sqrtf(BlockSum(squares) / static_cast<float>(k) + eps);
  for (int64_t i = threadIdx.x; i < k / 4; i += kThreads) {
    StoreBf16x4(Scaled(row[i], scale, weights[i]), out + blockIdx.x * out_stride + 4 * i);
  }
}

// A block a row of up to 4 * kVectors * kNormThreads, which is in registers between its sum and the
// result: memory is waited for once.
constexpr int kNormThreads = 512;
template <int kVectors>
__global__ void __launch_bounds__(kNormThreads)
    RmsNormShortRows(const float* x, const float* weight, float eps, int k, __nv_bfloat16* out,
                     int64_t out_stride) {
  LetNextKernelStart();
  const auto* row = reinterpret_cast<const float4*>(x + static_cast<int64_t>(blockIdx.x) * k);
  const auto* weights = reinterpret_cast<const float4*>(weight);
  float4 v[kVectors], w[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = i * kNormThreads + static_cast<int>(threadIdx.x);
    w[i] = at < k / 4 ? weights[at] : float4{0, 0, 0, 0};
  }
  WaitForEarlierKernels();
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = i * kNormThreads + static_cast<int>(threadIdx.x);
    v[i] = at < k / 4 ? row[at] : float4{0, 0, 0, 0};
  }
  float squares = 0;
#pragma unroll
  for (const float4& of : v) {
    squares += of.x * of.x + of.y * of.y + of.z * of.z + of.w * of.w;
  }
  const float sum = BlockSum<kNormThreads>(squares);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(k) + eps);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = i * kNormThreads + static_cast<int>(threadIdx.x);
    if (at < k / 4) StoreBf16x4(Scaled(v[i], scale, w[i]), out + blockIdx.x * out_stride + 4 * at);
  }
}

__global__ void LayerNormRows(const float* x, const float* weight, const float* bias, float eps,
                              int64_t k, __nv_bfloat16* out, int64_t out_stride) {
  BeginEarly();
  const float* row = x + blockIdx.x * k;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < k; i += kThreads) sum += row[i];
  const float mean = BlockSum(sum) / static_cast<float>(k);
  float squares = 0;
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    squares += (row[i] - mean) * (row[i] - mean);
  }
  const float scale = 1.0f / sqrtf(BlockSum(squares) / static_cast<float>(k) + eps);
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    out[blockIdx.x * out_stride + i] =
        __float2bfloat16_rn((row[i] - mean) * scale * weight[i] + bias[i]);
  }
}

__global__ void RopeTableRows(const int32_t* positions, const float* inv_freq, int half,
                              float scale, float* table) {
  BeginEarly();
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    const float angle = static_cast<float>(positions[blockIdx.x]) * inv_freq[i];
    float* cos = table + static_cast<int64_t>(blockIdx.x) * 2 * half;
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    cos[i] = cosine * scale;
    cos[half + i] = sine * scale;
  }
}

// A warp a head of queries or keys, in place.
__global__ void NormHeadsRows(QkvShape shape, const float* q, float q_eps, const float* k,
                              float k_eps, float* qkv) {
  BeginEarly();
  const int dim = shape.head_dim, lane = threadIdx.x % kWarp;
  float* row = qkv + static_cast<int64_t>(blockIdx.x) * (shape.heads + 2 * shape.kv_heads) * dim;
  for (int head = threadIdx.x / kWarp; head < shape.heads + shape.kv_heads;
       head += kThreads / kWarp) {
    float* x = row + head * dim;
    float squares = 0;
    for (int i = lane; i < dim; i += kWarp) squares += x[i] * x[i];
    const float* weight = head < shape.heads ? q : k;
    const float eps = head < shape.heads ? q_eps : k_eps;
    const float scale = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(dim) + eps);
    for (int i = lane; i < dim; i += kWarp) x[i] = x[i] * scale * weight[i];
  }
}

__device__ float4 LoadFloats(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ void StoreFloats(const float4& x, float* to) { *reinterpret_cast<float4*>(to) = x; }

// Four pairs that rotate together, of a head's lower and upper half.
struct Pairs {
  float4 low, high;

  __device__ Pairs(const float* x, int half) : low(LoadFloats(x)), high(LoadFloats(x + half)) {}
  __device__ void Rotate(const float* cos, const float* sin) {
    const float4 c = LoadFloats(cos), s = LoadFloats(sin);
    const float2 x = Rotated(low.x, high.x, c.x, s.x), y = Rotated(low.y, high.y, c.y, s.y),
                 z = Rotated(low.z, high.z, c.z, s.z), w = Rotated(low.w, high.w, c.w, s.w);
    low = {x.x, y.x, z.x, w.x};
    high = {x.y, y.y, z.y, w.y};
  }
};

__device__ float4 Times(const float4& x, float y) { return {x.x * y, x.y * y, x.z * y, x.w * y}; }

// What threads take of a row, one each: four pairs of a query or key head, or eight values.
__host__ __device__ int RopeTasks(const QkvShape& shape) {
  return (shape.heads + 2 * shape.kv_heads) * (shape.head_dim / 8);
}

// Blocks (row, some tasks).
__global__ void RopeAndStoreKvRows(QkvShape shape, float* qkv, const float* table,
                                   const KvSlot* slots, KvStride stride, float scale) {
  BeginEarly();
  const int dim = shape.head_dim, half = dim / 2, of_head = dim / 8;
  const int task = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (task >= RopeTasks(shape)) return;
  const int head = task / of_head, part = task % of_head;
  const int64_t row = blockIdx.x;
  const float* cos = table + row * dim + 4 * part;
  float* x = qkv + (row * (shape.heads + 2 * shape.kv_heads) + head) * dim;
  if (head < shape.heads) {
    Pairs pairs(x + 4 * part, half);
    pairs.Rotate(cos, cos + half);
    StoreFloats(Times(pairs.low, scale), x + 4 * part);
    StoreFloats(Times(pairs.high, scale), x + 4 * part + half);
    return;
  }
  const KvSlot slot = slots[row];
  if (slot.k == nullptr) return;
  if (head < shape.heads + shape.kv_heads) {
    Pairs pairs(x + 4 * part, half);
    pairs.Rotate(cos, cos + half);
    auto* to = reinterpret_cast<__nv_bfloat16*>(slot.k) + stride.layer +
               (head - shape.heads) * stride.head + 4 * part;
    StoreBf16x4(pairs.low, to);
    StoreBf16x4(pairs.high, to + half);
    return;
  }
  auto* to = reinterpret_cast<__nv_bfloat16*>(slot.v) + stride.layer +
             (head - shape.heads - shape.kv_heads) * stride.head + 8 * part;
  const float4 low = LoadFloats(x + 8 * part), high = LoadFloats(x + 8 * part + 4);
  StoreBf16x8({low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, to);
}

// Blocks (row, some columns); eight columns a thread.
__global__ void EmbedRows(const uint16_t* table, int64_t k, const int32_t* tokens, float* out) {
  BeginEarly();
  const int64_t i = 8 * (blockIdx.y * static_cast<int64_t>(kThreads) + threadIdx.x);
  if (i >= k) return;
  float x[8];
  LoadSums(table + tokens[blockIdx.x] * k, nullptr, i, x);
  float* to = out + blockIdx.x * k + i;
  StoreFloats({x[0], x[1], x[2], x[3]}, to);
  StoreFloats({x[4], x[5], x[6], x[7]}, to + 4);
}

// Blocks (row, some columns); eight columns a thread.
__global__ void TakeRowsKernel(const float* x, const int32_t* rows, int64_t k, float* out) {
  BeginEarly();
  const int64_t i = 8 * (blockIdx.y * static_cast<int64_t>(kThreads) + threadIdx.x);
  if (i >= k) return;
  const float* from = x + rows[blockIdx.x] * k + i;
  float* to = out + blockIdx.x * k + i;
  const float4 low = LoadFloats(from), high = LoadFloats(from + 4);
  StoreFloats(low, to);
  StoreFloats(high, to + 4);
}

// Blocks (row, some columns); eight columns a thread.
__global__ void SwiGluRows(const uint16_t* gate_up, const float* bias, int64_t k,
                           __nv_bfloat16* out, int64_t out_stride) {
  BeginEarly();
  const int64_t row = blockIdx.x;
  const int64_t i = 8 * (blockIdx.y * static_cast<int64_t>(kThreads) + threadIdx.x);
  if (i >= k) return;
  float gate[8], up[8];
  LoadSums(gate_up + row * 2 * k, bias, i, gate);
  LoadSums(gate_up + row * 2 * k, bias, k + i, up);
#pragma unroll
  for (int j = 0; j < 8; ++j) up[j] *= SiluOf(gate[j]);
  StoreBf16x8(up, out + row * out_stride + i);
}

__global__ void GeluRows(const uint16_t* sums, const float* bias, int64_t k, __nv_bfloat16* out,
                         int64_t out_stride) {
  BeginEarly();
  const int64_t row = blockIdx.x;
  const int64_t i = 8 * (blockIdx.y * static_cast<int64_t>(kThreads) + threadIdx.x);
  if (i >= k) return;
  float x[8];
  LoadSums(sums + row * k, bias, i, x);
#pragma unroll
  for (float& value : x) value = GeluOf(value);
  StoreBf16x8(x, out + row * out_stride + i);
}

__nv_bfloat16* Elements(const Activations& a) { return reinterpret_cast<__nv_bfloat16*>(a.data); }

// Rows by blocks that cover so many tasks, one a thread.
dim3 RowsAndTasks(int64_t rows, int64_t tasks) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>((tasks + kThreads - 1) / kThreads));
}

// Rows by blocks that cover k columns, eight a thread.
dim3 RowsAndColumns(int64_t rows, int64_t k) {
  CHECK(k % 8 == 0);
  return RowsAndTasks(rows, k / 8);
}

}  // namespace

void RmsNorm(CudaDevice& device, const float* x, const NormWeights& norm, const Activations& out) {
  if (out.rows == 0) return;
  const auto start = [&](auto vectors) {
    LaunchEarly(device, {out.rows, kNormThreads}, RmsNormShortRows<decltype(vectors)::value>, x,
                norm.weight, norm.eps, static_cast<int>(out.k), Elements(out), out.stride);
  };
  constexpr int64_t kOneVector = 4 * kNormThreads;
  if (out.k <= kOneVector) return start(std::integral_constant<int, 1>());
  if (out.k <= 2 * kOneVector) return start(std::integral_constant<int, 2>());
  if (out.k <= 4 * kOneVector) return start(std::integral_constant<int, 4>());
  LaunchEarly(device, {out.rows, kThreads}, RmsNormRows, x, norm.weight, norm.eps, out.k,
              Elements(out), out.stride);
}

void LayerNorm(CudaDevice& device, const float* x, const NormWeights& norm,
               const Activations& out) {
  if (out.rows == 0) return;
  LaunchEarly(device, {out.rows, kThreads}, LayerNormRows, x, norm.weight, norm.bias, norm.eps,
              out.k, Elements(out), out.stride);
}

void RopeTable(CudaDevice& device, std::span<const int32_t> positions,
               std::span<const float> inv_freq, float scale, float* table) {
  if (positions.empty()) return;
  LaunchEarly(device, {std::ssize(positions), kWarp}, RopeTableRows, positions.data(),
              inv_freq.data(), static_cast<int>(inv_freq.size()), scale, table);
}

void NormHeads(CudaDevice& device, const QkvShape& shape, const NormWeights& q,
               const NormWeights& k, std::span<float> qkv) {
  const int64_t row_size = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  if (qkv.empty()) return;
  LaunchEarly(device, {std::ssize(qkv) / row_size, kThreads}, NormHeadsRows, shape, q.weight, q.eps,
              k.weight, k.eps, qkv.data());
}

void RopeAndStoreKv(CudaDevice& device, const QkvShape& shape, float* qkv, const float* table,
                    std::span<const KvSlot> slots, const KvStride& stride) {
  if (slots.empty()) return;
  LaunchEarly(device, {RowsAndTasks(std::ssize(slots), RopeTasks(shape)), kThreads},
              RopeAndStoreKvRows, shape, qkv, table, slots.data(), stride, QueryScale(shape));
}

void Embed(CudaDevice& device, const PackedMatrix& table, std::span<const int32_t> tokens,
           float* out) {
  if (tokens.empty()) return;
  LaunchEarly(device, {RowsAndColumns(std::ssize(tokens), table.k()), kThreads}, EmbedRows,
              table.DeviceRows(), table.k(), tokens.data(), out);
}

void TakeRows(CudaDevice& device, const float* x, std::span<const int32_t> rows, int64_t k,
              float* out) {
  if (rows.empty()) return;
  LaunchEarly(device, {RowsAndColumns(std::ssize(rows), k), kThreads}, TakeRowsKernel, x,
              rows.data(), k, out);
}

void SwiGlu(CudaDevice& device, const uint16_t* gate_up, const float* bias,
            const Activations& out) {
  if (out.rows == 0) return;
  LaunchEarly(device, {RowsAndColumns(out.rows, out.k), kThreads}, SwiGluRows, gate_up, bias, out.k,
              Elements(out), out.stride);
}

void Gelu(CudaDevice& device, const uint16_t* x, const float* bias, const Activations& out) {
  if (out.rows == 0) return;
  LaunchEarly(device, {RowsAndColumns(out.rows, out.k), kThreads}, GeluRows, x, bias, out.k,
              Elements(out), out.stride);
}

}  // namespace kvcake::cuda
