#include "ops/packed_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/bf16.h"
#include "ops/cuda_device.h"
#include "ops/kernels.h"
#include "ops/pack_bf16.h"

namespace kvcake {
namespace {

constexpr int64_t kPanelWidthMax = 32;

struct SourceRow {
  const void* data = nullptr;  // [k]
  WeightType type = WeightType::kBf16;
  const float* bias = nullptr;
};

SourceRow RowOf(const WeightRows& rows, int64_t row, int64_t k) {
  const int64_t bytes = rows.type == WeightType::kF32 ? 4 : 2;
  return {static_cast<const char*>(rows.data) + row * k * bytes, rows.type,
          rows.bias == nullptr ? nullptr : rows.bias + row};
}

// Tensors in a file need not be aligned to their elements.
template <typename T>
T LoadAs(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
  return value;
}

uint16_t WeightAt(const SourceRow& row, int64_t i) {
  switch (row.type) {
    case WeightType::kBf16:
      return LoadAs<uint16_t>(row.data, i);
    case WeightType::kF16:
      return F32ToBf16(F16ToF32(LoadAs<uint16_t>(row.data, i)));
    case WeightType::kF32:
      return F32ToBf16(LoadAs<float>(row.data, i));
  }
  return 0;
}

void RoundRow(const SourceRow& row, int64_t k, uint16_t* out) {
  if (row.type == WeightType::kBf16) {
    std::memcpy(out, row.data, k * sizeof(uint16_t));
    return;
  }
  for (int64_t i = 0; i < k; ++i) out[i] = WeightAt(row, i);
}

// The row as it is in its source.
void WidenRow(const SourceRow& row, int64_t k, float* out) {
  switch (row.type) {
    case WeightType::kBf16:
      for (int64_t i = 0; i < k; ++i) out[i] = Bf16ToF32(LoadAs<uint16_t>(row.data, i));
      return;
    case WeightType::kF16:
      for (int64_t i = 0; i < k; ++i) out[i] = F16ToF32(LoadAs<uint16_t>(row.data, i));
      return;
    case WeightType::kF32:
      std::memcpy(out, row.data, k * sizeof(float));
      return;
  }
}

struct Bf16PanelWriter {
  uint16_t* to;  // [k / 2][width][2]
  int64_t width;

  void PackColumns(std::span<const SourceRow> columns, int64_t k) const {
    if (std::ranges::all_of(columns,
                            [](const SourceRow& c) { return c.type == WeightType::kBf16; })) {
      std::array<const void*, kPanelWidthMax> data;
      std::ranges::transform(columns, data.begin(), &SourceRow::data);
      PackBf16Columns(std::span(data).first(columns.size()), k, width, to);
      return;
    }
    for (int64_t k0 = 0; k0 < k; k0 += 16) {
      for (size_t column = 0; column < columns.size(); ++column) {
        for (int64_t i = k0; i < k0 + 16; ++i) {
          to[(i / 2 * width + column) * 2 + i % 2] = WeightAt(columns[column], i);
        }
      }
    }
  }
};

struct Int8PanelWriter {
  uint8_t* to;  // [k / unit][width][unit]
  float* scales;
  int64_t width;
  int64_t unit;

  // Weights are rounded to their scale as rows are that enter a product. values: [k], scratch.
  void PackColumn(const float* row, int64_t k, int64_t column, uint8_t* __restrict values) const {
    uint32_t largest_bits = 0;  // of magnitudes, which are ordered as their bits are
    for (int64_t i = 0; i < k; ++i) {
      largest_bits = std::max(largest_bits, std::bit_cast<uint32_t>(row[i]) & 0x7fffffffu);
    }
    const auto largest = std::bit_cast<float>(largest_bits);
    const bool finite = largest_bits < 0x7f800000u;
    const float inverse = finite && largest >= kSmallestInt8Row ? 127.0f / largest : 0.0f;
    scales[column] = finite ? largest / 127.0f : NAN;
    for (int64_t i = 0; i < k; ++i) {
      constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: rounds to an integer, ties to even
      const auto bits = finite ? std::bit_cast<uint32_t>(row[i] * inverse + kMagic) : 0;
      values[i] = static_cast<uint8_t>(bits + kInt8Offset);
    }
    uint8_t* at = to + column * unit;
    for (int64_t i = 0; i < k; i += unit, at += width * unit) {
      for (int64_t j = 0; j < unit; ++j) at[j] = values[i + j];
    }
  }
};

}  // namespace

const char* WeightFormatName(WeightFormat format) {
  return format == WeightFormat::kInt8 ? "int8" : "bf16";
}

// In blocks of a bounded size on their way.
template <typename SourceOf>
void PackedMatrix::PackOnDevice(const Compute& compute, SourceOf source_of) {
  constexpr int64_t kBlockBytes = 16 << 20;
  CHECK(format_ == WeightFormat::kBf16);
  const int64_t row_bytes = k_ * static_cast<int64_t>(sizeof(uint16_t));
  buffer_ = Buffer(n_ * row_bytes, Memory::kDevice);
  const int64_t step = std::clamp<int64_t>(kBlockBytes / row_bytes, 1, n_);
  std::vector<uint16_t> block(step * k_);
  for (int64_t first = 0; first < n_; first += step) {
    const int64_t rows = std::min(step, n_ - first);
    compute.pool().ParallelFor(
        rows, [&](int64_t row, int) { RoundRow(source_of(first + row), k_, &block[row * k_]); });
    compute.cuda()->Upload(buffer_.data() + first * row_bytes, block.data(), rows * row_bytes);
  }
  if (source_of(0).bias == nullptr) return;
  std::vector<float> bias(n_);
  for (int64_t row = 0; row < n_; ++row) bias[row] = *source_of(row).bias;
  device_bias_ = compute.Put(bias);
}

template <typename SourceOf>
void PackedMatrix::Pack(const Compute& compute, SourceOf source_of) {
  CHECK(k_ % 16 == 0);
  if (compute.cuda() != nullptr) return PackOnDevice(compute, source_of);
  const bool int8 = format_ == WeightFormat::kInt8;
  panel_width_ = compute.kernels().panel_width;
  int8_unit_ = compute.kernels().int8_unit;
  CHECK(panel_width_ <= kPanelWidthMax);
  buffer_ = Buffer(static_cast<uint64_t>(panels()) * panel_width_ * k_ * (int8 ? 1 : 2));
  if (int8) {
    CHECK(k_ <= kInt8DepthMax);
    scales_.resize(panels() * panel_width_);
  }
  if (source_of(0).bias != nullptr) bias_.resize(panels() * panel_width_);
  compute.pool().ParallelFor(panels(), [&](int64_t panel, int worker) {
    const int64_t first = panel * panel_width_, width = std::min(panel_width_, n_ - first);
    std::array<SourceRow, kPanelWidthMax> from;
    for (int64_t column = 0; column < width; ++column) {
      from[column] = source_of(first + column);
      if (!bias_.empty()) bias_[first + column] = *from[column].bias;
    }
    if (!int8) {
      const Bf16PanelWriter to{buffer_.as<uint16_t>() + first * k_, panel_width_};
      to.PackColumns(std::span(from).first(width), k_);
      return;
    }
    const Int8PanelWriter to{buffer_.as<uint8_t>() + first * k_, &scales_[first], panel_width_,
                             int8_unit_};
    auto* row = reinterpret_cast<float*>(compute.scratch(worker));
    auto* values = reinterpret_cast<uint8_t*>(row + k_);
    static_assert(kInt8DepthMax * (sizeof(float) + 1) <= Compute::kScratchBytes);
    for (int64_t column = 0; column < width; ++column) {
      WidenRow(from[column], k_, row);
      to.PackColumn(row, k_, column, values);
    }
  });
}

PackedMatrix::PackedMatrix(const Compute& compute, std::span<const WeightRows> parts, int64_t k,
                           WeightFormat format)
    : format_(format), k_(k) {
  for (const WeightRows& part : parts) n_ += part.rows;
  Pack(compute, [&](int64_t row) {
    const WeightRows* part = parts.data();
    for (; row >= part->rows; ++part) row -= part->rows;
    return RowOf(*part, row, k);
  });
}

PackedMatrix PackedMatrix::GateUp(const Compute& compute, const WeightRows& gate,
                                  const WeightRows& up, int64_t k, WeightFormat format) {
  CHECK(gate.rows == up.rows && gate.rows % 16 == 0);
  PackedMatrix w;
  w.format_ = format;
  w.n_ = 2 * gate.rows;
  w.k_ = k;
  const int64_t half = compute.cuda() != nullptr ? gate.rows : compute.kernels().panel_width / 2;
  w.Pack(compute, [&](int64_t column) {
    const int64_t row = column / (2 * half) * half + column % half;
    return RowOf(column % (2 * half) < half ? gate : up, row, k);
  });
  return w;
}

void PackedMatrix::CopyRow(int64_t row, float* out) const {
  CHECK(row >= 0 && row < n_);
  if (format_ == WeightFormat::kInt8) {
    const float scale = scales_[row];
    const uint8_t* column = Int8Panel(row / panel_width_) + row % panel_width_ * int8_unit_;
    for (int64_t k = 0; k < k_; ++k) {
      const int value = column[k / int8_unit_ * int8_unit_ * panel_width_ + k % int8_unit_];
      out[k] = static_cast<float>(value - kInt8Offset) * scale;
    }
    return;
  }
  const uint16_t* from = Panel(row / panel_width_) + row % panel_width_ * 2;
  for (int64_t k = 0; k < k_; k += 2, from += 2 * panel_width_) {
    out[k] = Bf16ToF32(from[0]);
    out[k + 1] = Bf16ToF32(from[1]);
  }
}

}  // namespace kvcake
