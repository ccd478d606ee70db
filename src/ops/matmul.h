// Matrix products with packed weights.
//
// The result of a row never depends on the rows around it, on the tiling or on the number of
// threads: with bf16 weights each output element is one chain of multiply-adds over ascending k,
// with int8 weights an exact sum of integers. Products with int8 weights quantise `a` in place of
// its own (Activations::quantized).
#pragma once

#include <cstdint>

#include "ops/compute.h"
#include "ops/elementwise.h"
#include "ops/packed_matrix.h"

namespace kvcake {

// out[rows][n] = a[rows][k] x w^T + bias, in f32; `stride` floats from row to row of out.
void MatMul(const Compute& compute, const Activations& a, const PackedMatrix& w, float* out,
            int64_t stride);
// out += a x w^T + bias.
void MatMulAdd(const Compute& compute, const Activations& a, const PackedMatrix& w, float* out,
               int64_t stride);
// MatMul to `qkv`, whole rows of the fused projection, and RopeAndStoreKv of these. Keys and values
// are in the pages only: their part of `qkv` is undefined.
void MatMulQkv(const Compute& compute, const Activations& a, const PackedMatrix& w,
               const QkvShape& shape, float* qkv, const float* table, std::span<const KvSlot> slots,
               const KvStride& stride);
// out = silu(a x gate^T + bias) * (a x up^T + bias), ready to enter the next product; w is made by
// GateUp and out.k is w.n() / 2.
void MatMulSwiGlu(const Compute& compute, const Activations& a, const PackedMatrix& w,
                  const Activations& out);
// out = gelu(a x w^T + bias) by the error function; out.k is w.n(), a multiple of 16.
void MatMulGelu(const Compute& compute, const Activations& a, const PackedMatrix& w,
                const Activations& out);

}  // namespace kvcake
