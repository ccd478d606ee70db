// Matrix products with packed bf16 weights.
//
// The result of a row never depends on the rows around it, on the tiling or on the number of
// threads: each output element is one chain of multiply-adds over ascending k.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/buffer.h"
#include "ops/compute.h"

namespace kvcake {

enum class WeightType { kBf16, kF16, kF32 };

// Row-major [rows][k]; borrowed while packing.
struct WeightRows {
  const void* data = nullptr;
  WeightType type = WeightType::kBf16;
  int64_t rows = 0;
  const float* bias = nullptr;  // [rows], or none; all parts of a matrix have one, or none has
};

// Weights [n][k] as bf16 in the order in which the kernels of one path read them: 2 bytes a weight
// and no second copy; and their bias, which every product adds. k is a multiple of 16; n is any.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // The rows of `parts` one after the other, rounded to nearest even where they are not bf16.
  PackedMatrix(const Compute& compute, std::span<const WeightRows> parts, int64_t k);
  // Gate and up projections of equal size, interleaved for MatMulSwiGlu.
  static PackedMatrix GateUp(const Compute& compute, const WeightRows& gate, const WeightRows& up,
                             int64_t k);

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  // [panel][k / 2][panel_width][2] of bf16; columns past n are zero.
  const uint16_t* Panel(int64_t panel) const {
    return buffer_.as<uint16_t>() + panel * k_ * panel_width_;
  }
  // [panel_width], or nullptr without a bias.
  const float* PanelBias(int64_t panel) const {
    return bias_.empty() ? nullptr : bias_.data() + panel * panel_width_;
  }
  int64_t panels() const { return (n_ + panel_width_ - 1) / panel_width_; }
  // Row n (a token's embedding, when these are embeddings), widened to f32.
  void CopyRow(int64_t row, float* out) const;

 private:
  template <typename SourceOf>
  void Pack(const Compute& compute, SourceOf source_of);

  int64_t n_ = 0;
  int64_t k_ = 0;
  int64_t panel_width_ = 1;
  Buffer buffer_;
  std::vector<float> bias_;  // [panels * panel_width], columns past n are zero; or empty
};

// out[rows][n] = a[rows][k] x w^T + bias, in f32; `stride` floats from row to row of out.
void MatMul(const Compute& compute, const Activations& a, const PackedMatrix& w, float* out,
            int64_t stride);
// out += a x w^T + bias.
void MatMulAdd(const Compute& compute, const Activations& a, const PackedMatrix& w, float* out,
               int64_t stride);
// out = silu(a x gate^T + bias) * (a x up^T + bias), ready to enter the next product; w is made by
// GateUp and out.k is w.n() / 2.
void MatMulSwiGlu(const Compute& compute, const Activations& a, const PackedMatrix& w,
                  const Activations& out);
// out = gelu(a x w^T + bias) by the error function; out.k is w.n(), a multiple of 16.
void MatMulGelu(const Compute& compute, const Activations& a, const PackedMatrix& w,
                const Activations& out);

}  // namespace kvcake
