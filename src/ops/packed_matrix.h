// Weight matrices, packed for the kernels of one path.
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

// How weights are held. kInt8: a byte each and a scale a row (an output), so that products are of
// integers; the rows that enter are rounded likewise, each by its own largest magnitude.
enum class WeightFormat { kBf16, kInt8 };
// The most elements of a row of kInt8: 255 * 127 * k fits 31 bits.
constexpr int64_t kInt8DepthMax = 1 << 16;

const char* WeightFormatName(WeightFormat format);  // "bf16", "int8"

// Weights [n][k] in the order in which the kernels of one path read them, without a second copy;
// and their bias, which every product adds. k is a multiple of 16; n is any. CUDA's lie on the
// device, row after row, as kBf16.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // The rows of `parts` one after the other, rounded to nearest even.
  PackedMatrix(const Compute& compute, std::span<const WeightRows> parts, int64_t k,
               WeightFormat format = WeightFormat::kBf16);
  // Gate and up projections of equal size, interleaved for MatMulSwiGlu; one after the other on
  // CUDA.
  static PackedMatrix GateUp(const Compute& compute, const WeightRows& gate, const WeightRows& up,
                             int64_t k, WeightFormat format = WeightFormat::kBf16);

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  WeightFormat format() const { return format_; }
  // kBf16: [panel][k / 2][panel_width][2]; columns past n are zero.
  const uint16_t* Panel(int64_t panel) const {
    return buffer_.as<uint16_t>() + panel * k_ * panel_width_;
  }
  // kInt8: [panel][k / int8_unit][panel_width][int8_unit], each the weight over its scale, plus
  // kInt8Offset.
  const uint8_t* Int8Panel(int64_t panel) const {
    return buffer_.as<uint8_t>() + panel * k_ * panel_width_;
  }
  // kInt8: [panel_width]
  const float* PanelScales(int64_t panel) const { return scales_.data() + panel * panel_width_; }
  // [panel_width], or nullptr without a bias.
  const float* PanelBias(int64_t panel) const {
    return bias_.empty() ? nullptr : bias_.data() + panel * panel_width_;
  }
  int64_t panels() const { return (n_ + panel_width_ - 1) / panel_width_; }
  // CUDA: [n][k], and [n] or nullptr.
  const uint16_t* DeviceRows() const { return buffer_.as<uint16_t>(); }
  const float* DeviceBias() const { return device_bias_.as<float>(); }
  // Row n (a token's embedding, when these are embeddings), widened to f32. Of the CPU.
  void CopyRow(int64_t row, float* out) const;

 private:
  template <typename SourceOf>
  void Pack(const Compute& compute, SourceOf source_of);
  template <typename SourceOf>
  void PackOnDevice(const Compute& compute, SourceOf source_of);

  WeightFormat format_ = WeightFormat::kBf16;
  int64_t n_ = 0;
  int64_t k_ = 0;
  int64_t panel_width_ = 1;
  int64_t int8_unit_ = 1;
  Buffer buffer_;
  std::vector<float> scales_;  // kInt8: [panels * panel_width]
  std::vector<float> bias_;    // [panels * panel_width], columns past n are zero; or empty
  Buffer device_bias_;
};

}  // namespace kvcake
