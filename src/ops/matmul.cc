#include "ops/matmul.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "ops/bf16.h"
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

// c += bias, row by row; without a bias nothing.
void AddBias(const float* bias, int64_t rows, int64_t columns, float* c, int64_t c_stride) {
  if (bias == nullptr) return;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < columns; ++i) c[r * c_stride + i] += bias[i];
  }
}

// Runs `multiply` over the product in tasks of some rows by some panels, and hands each task's
// panels to use(panel, first_row, rows, c), c being [rows][panel_width] at c_stride.
template <typename Use>
void ForEachPanel(const Compute& compute, const Activations& a, const PackedMatrix& w, Use use) {
  CHECK(a.k == w.k());
  if (a.rows == 0) return;
  const Kernels& kernels = compute.kernels();
  const int64_t at_once = a.rows <= kernels.wide_rows ? kernels.wide_panels : 1;
  const int64_t groups = (w.panels() + at_once - 1) / at_once;
  // Whole panels keep the weights in the cache; rows are split where there are too few of them to
  // keep every worker busy.
  int64_t block = std::min(a.rows, kMultiplyRowsMax);
  const int64_t tasks_wanted = 4 * compute.pool().size();
  while (block > 96 && groups * ((a.rows + block - 1) / block) < tasks_wanted) block -= 48;
  const int64_t row_blocks = (a.rows + block - 1) / block;
  const int64_t width = kernels.panel_width;
  compute.pool().ParallelFor(groups * row_blocks, [&](int64_t task, int worker) {
    const int64_t first_panel = task / row_blocks * at_once, row = task % row_blocks * block;
    const int64_t panels = std::min(at_once, w.panels() - first_panel);
    MultiplyArgs args{.a = a.data + row * a.stride * ActivationBytes(compute.path()),
                      .a_stride = a.stride,
                      .rows = std::min(block, a.rows - row),
                      .b = w.Panel(first_panel),
                      .panels = panels,
                      .k = a.k,
                      .c = reinterpret_cast<float*>(compute.scratch(worker)),
                      .scratch = compute.scratch(worker) + kMultiplyScratchBytes};
    if (panels == at_once) {
      kernels.multiply(args);
      for (int64_t i = 0; i < panels; ++i) {
        float* c = args.c + i * width;
        AddBias(w.PanelBias(first_panel + i), args.rows, width, c, panels * width);
        use(first_panel + i, row, args.rows, c, panels * width);
      }
      return;
    }
    args.panels = 1;
    for (int64_t i = 0; i < panels; ++i) {
      args.b = w.Panel(first_panel + i);
      kernels.multiply(args);
      AddBias(w.PanelBias(first_panel + i), args.rows, width, args.c, width);
      use(first_panel + i, row, args.rows, args.c, width);
    }
  });
}

}  // namespace

template <typename SourceOf>
void PackedMatrix::Pack(const Compute& compute, SourceOf source_of) {
  CHECK(k_ % 16 == 0);
  panel_width_ = compute.kernels().panel_width;
  buffer_ = Buffer(static_cast<uint64_t>(panels()) * panel_width_ * k_ * sizeof(uint16_t));
  CHECK(panel_width_ <= kPanelWidthMax);
  if (source_of(0).bias != nullptr) bias_.resize(panels() * panel_width_);
  compute.pool().ParallelFor(panels(), [&](int64_t panel, int) {
    uint16_t* to = buffer_.as<uint16_t>() + panel * panel_width_ * k_;
    const int64_t first = panel * panel_width_, width = std::min(panel_width_, n_ - first);
    std::array<SourceRow, kPanelWidthMax> from;
    for (int64_t column = 0; column < width; ++column) {
      from[column] = source_of(first + column);
      if (!bias_.empty()) bias_[first + column] = *from[column].bias;
    }
    const auto columns = std::span(from).first(width);
    if (std::ranges::all_of(columns,
                            [](const SourceRow& c) { return c.type == WeightType::kBf16; })) {
      std::array<const void*, kPanelWidthMax> data;
      std::ranges::transform(columns, data.begin(), &SourceRow::data);
      PackBf16Columns(std::span(data).first(width), k_, panel_width_, to);
      return;
    }
    for (int64_t k0 = 0; k0 < k_; k0 += 16) {
      for (int64_t column = 0; column < width; ++column) {
        for (int64_t k = k0; k < k0 + 16; ++k) {
          to[(k / 2 * panel_width_ + column) * 2 + k % 2] = WeightAt(from[column], k);
        }
      }
    }
  });
}

PackedMatrix::PackedMatrix(const Compute& compute, std::span<const WeightRows> parts, int64_t k)
    : k_(k) {
  for (const WeightRows& part : parts) n_ += part.rows;
  Pack(compute, [&](int64_t row) {
    const WeightRows* part = parts.data();
    for (; row >= part->rows; ++part) row -= part->rows;
    return RowOf(*part, row, k);
  });
}

PackedMatrix PackedMatrix::GateUp(const Compute& compute, const WeightRows& gate,
                                  const WeightRows& up, int64_t k) {
  CHECK(gate.rows == up.rows && gate.rows % 16 == 0);
  PackedMatrix w;
  w.n_ = 2 * gate.rows;
  w.k_ = k;
  const int64_t half = compute.kernels().panel_width / 2;
  w.Pack(compute, [&](int64_t column) {
    const int64_t row = column / (2 * half) * half + column % half;
    return RowOf(column % (2 * half) < half ? gate : up, row, k);
  });
  return w;
}

void PackedMatrix::CopyRow(int64_t row, float* out) const {
  CHECK(row >= 0 && row < n_);
  const uint16_t* from = Panel(row / panel_width_) + row % panel_width_ * 2;
  for (int64_t k = 0; k < k_; k += 2, from += 2 * panel_width_) {
    out[k] = Bf16ToF32(from[0]);
    out[k + 1] = Bf16ToF32(from[1]);
  }
}

void MatMul(const Compute& compute, const Activations& a, const PackedMatrix& w, float* out,
            int64_t stride) {
  const int64_t width = compute.kernels().panel_width;
  ForEachPanel(compute, a, w,
               [&](int64_t panel, int64_t row, int64_t rows, const float* c, int64_t c_stride) {
                 const int64_t columns = std::min(width, w.n() - panel * width);
                 float* to = out + row * stride + panel * width;
                 for (int64_t r = 0; r < rows; ++r) {
                   std::memcpy(to + r * stride, c + r * c_stride, columns * sizeof(float));
                 }
               });
}

void MatMulAdd(const Compute& compute, const Activations& a, const PackedMatrix& w, float* out,
               int64_t stride) {
  const int64_t width = compute.kernels().panel_width;
  ForEachPanel(compute, a, w,
               [&](int64_t panel, int64_t row, int64_t rows, const float* c, int64_t c_stride) {
                 const int64_t columns = std::min(width, w.n() - panel * width);
                 float* to = out + row * stride + panel * width;
                 for (int64_t r = 0; r < rows; ++r) {
                   for (int64_t i = 0; i < columns; ++i) to[r * stride + i] += c[r * c_stride + i];
                 }
               });
}

void MatMulSwiGlu(const Compute& compute, const Activations& a, const PackedMatrix& w,
                  const Activations& out) {
  CHECK(out.rows == a.rows && out.k * 2 == w.n());
  const Kernels& kernels = compute.kernels();
  const int64_t half = kernels.panel_width / 2, bytes = ActivationBytes(compute.path());
  ForEachPanel(compute, a, w,
               [&](int64_t panel, int64_t row, int64_t rows, const float* c, int64_t c_stride) {
                 std::byte* to = out.data + (row * out.stride + panel * half) * bytes;
                 kernels.swiglu(c, c_stride, rows, to, out.stride);
               });
}

void MatMulGelu(const Compute& compute, const Activations& a, const PackedMatrix& w,
                const Activations& out) {
  CHECK(out.rows == a.rows && out.k == w.n() && out.k % 16 == 0);
  const Kernels& kernels = compute.kernels();
  const int64_t width = kernels.panel_width, bytes = ActivationBytes(compute.path());
  ForEachPanel(compute, a, w,
               [&](int64_t panel, int64_t row, int64_t rows, const float* c, int64_t c_stride) {
                 const int64_t columns = std::min(width, w.n() - panel * width);
                 std::byte* to = out.data + (row * out.stride + panel * width) * bytes;
                 kernels.gelu(c, c_stride, rows, columns, to, out.stride);
               });
}

}  // namespace kvcake
