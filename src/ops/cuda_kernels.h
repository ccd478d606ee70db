// The operations of this room on a CUDA device: they enqueue kernels and return, and take memory of
// the device. Private to this room; arguments have been checked. Builds without CUDA never call
// them.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cuda_device.h"
#include "ops/elementwise.h"
#include "ops/packed_matrix.h"
#include "ops/sample.h"
#include "ops/step_graphs.h"

namespace kvcake::cuda {

// step_graphs.h; fails where CUDA refuses to begin, to end or to make the graph, and nothing has
// run then. A kernel that it refuses meanwhile ends the process.
Result<std::unique_ptr<StepGraph>> Capture(CudaDevice& device, const StepGraphs::Enqueue& enqueue);

// elementwise.h
void RmsNorm(CudaDevice& device, const float* x, const NormWeights& norm, const Activations& out);
void LayerNorm(CudaDevice& device, const float* x, const NormWeights& norm, const Activations& out);
void RopeTable(CudaDevice& device, std::span<const int32_t> positions,
               std::span<const float> inv_freq, float scale, float* table);
void NormHeads(CudaDevice& device, const QkvShape& shape, const NormWeights& q,
               const NormWeights& k, std::span<float> qkv);
void RopeAndStoreKv(CudaDevice& device, const QkvShape& shape, float* qkv, const float* table,
                    std::span<const KvSlot> slots, const KvStride& stride);
void Embed(CudaDevice& device, const PackedMatrix& table, std::span<const int32_t> tokens,
           float* out);
void TakeRows(CudaDevice& device, const float* x, std::span<const int32_t> rows, int64_t k,
              float* out);

// Whether products of such rows had better normalize them than RmsNorm before them. They do what
// LazyRmsNorm left to them in any case.
bool ProductsNormalize(const CudaDevice& device, const Activations& rows);

// matmul.h; where `add`, MatMulAdd.
void MatMul(CudaDevice& device, const Activations& a, const PackedMatrix& w, float* out,
            int64_t stride, bool add);
void MatMulSwiGlu(CudaDevice& device, const Activations& a, const PackedMatrix& w,
                  const Activations& out);
void MatMulGelu(CudaDevice& device, const Activations& a, const PackedMatrix& w,
                const Activations& out);
void MatMulQkv(CudaDevice& device, const Activations& a, const PackedMatrix& w,
               const QkvShape& shape, float* qkv, const float* table, std::span<const KvSlot> slots,
               const KvStride& stride);

// Whether products of few rows that follow each other become one kernel, which copies the weights
// of one while its blocks wait for the results of the one before; they are enqueued when something
// else is. Not unless it is asked for: no device has measured it yet.
enum class Join {
  kNo,
  kEarly,     // blocks start where there is room, as the kernel before ends. Where two processes
              // that do so share a device (MPS), both may wait for ever for the room of the other
  kTogether,  // all at once
};
void JoinProducts(CudaDevice& device, Join join);

// sample.h
void SampleTokens(CudaDevice& device, const LogitRows& logits, std::span<const RowSampling> rows,
                  int32_t* tokens);

// out = silu(gate) * up of [out.rows][2 * out.k] bf16, the gate's columns first, to which the bias
// of the columns, nullptr without, is added before.
void SwiGlu(CudaDevice& device, const uint16_t* gate_up, const float* bias, const Activations& out);
// out = gelu(x + bias) by the error function, of [out.rows][out.k] bf16.
void Gelu(CudaDevice& device, const uint16_t* x, const float* bias, const Activations& out);

// sum_words.h
void SumWords(CudaDevice& device, std::span<const uint64_t> words, uint64_t* sum);

}  // namespace kvcake::cuda
