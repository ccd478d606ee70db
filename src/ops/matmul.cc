#include "ops/matmul.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/cuda_kernels.h"
#include "ops/for_each_row.h"
#include "ops/kernels.h"

namespace kvcake {
namespace {

// Rows [first, first + rows) by `panels` panels from first_panel on, plus their bias; panels is as
// of MultiplyArgs. The result, [rows][panels * panel_width], is in the worker's scratch.
struct Block {
  int64_t first = 0;
  int64_t rows = 0;
  int64_t first_panel = 0;
  int64_t panels = 0;
  bool more = false;  // the worker goes on with the panel behind them
};

float* MultiplyBlock(const Compute& compute, const Activations& a, const PackedMatrix& w,
                     const Block& block, int worker) {
  const Kernels& kernels = compute.kernels();
  auto* c = reinterpret_cast<float*>(compute.scratch(worker));
  std::byte* scratch = compute.scratch(worker) + kMultiplyScratchBytes;
  if (w.format() == WeightFormat::kInt8) {
    kernels.multiply_int8({.a = a.quantized + block.first * a.quantized_stride,
                           .a_stride = a.quantized_stride,
                           .row_scales = a.scales + block.first,
                           .row_sums = a.sums + block.first,
                           .rows = block.rows,
                           .b = w.Int8Panel(block.first_panel),
                           .column_scales = w.PanelScales(block.first_panel),
                           .panels = block.panels,
                           .more = block.more,
                           .k = a.k,
                           .c = c,
                           .scratch = scratch});
  } else {
    kernels.multiply({.a = a.data + block.first * a.stride * ActivationBytes(compute.path()),
                      .a_stride = a.stride,
                      .rows = block.rows,
                      .b = w.Panel(block.first_panel),
                      .panels = block.panels,
                      .more = block.more,
                      .k = a.k,
                      .c = c,
                      .scratch = scratch});
  }
  if (const float* bias = w.PanelBias(block.first_panel)) {
    const int64_t columns = block.panels * kernels.panel_width;
    for (int64_t r = 0; r < block.rows; ++r) {
      for (int64_t i = 0; i < columns; ++i) c[r * columns + i] += bias[i];
    }
  }
  return c;
}

void Quantize(const Compute& compute, const Activations& a) {
  CHECK(a.quantized != nullptr);
  ForEachRow(compute, a.rows, [&](int64_t row) {
    compute.kernels().quantize_row(a.data + row * a.stride * ActivationBytes(compute.path()), a.k,
                                   a.quantized + row * a.quantized_stride, a.scales + row,
                                   a.sums + row);
  });
}

// How a product is shared out: tasks of so many rows by a stretch of so many panels, of which
// `at_once` are multiplied at once.
struct Sharing {
  int64_t rows = 0;
  int64_t stretch = 0;
  int64_t at_once = 0;
};

// Few rows wait for memory, which delivers long stretches fastest.
Sharing ShareFewRows(int64_t rows, int64_t panels, int64_t at_once, int64_t workers) {
  constexpr int64_t kTasksPerWorker = 8;
  const int64_t tasks = kTasksPerWorker * workers * at_once;
  return {.rows = rows, .stretch = (panels + tasks - 1) / tasks * at_once, .at_once = at_once};
}

// Many multiply, and share the panels evenly. Whole panels keep the weights in the cache; rows are
// split where there are too few panels to keep every worker busy.
Sharing ShareManyRows(int64_t rows, int64_t panels, int64_t many_panels, int64_t workers) {
  constexpr int64_t kRowsMin = 96, kRowStep = 48, kRowUnit = 16;
  const int64_t tasks_wanted = 4 * workers;
  const auto tasks = [&](int64_t each, int64_t at_once) {
    return (panels + at_once - 1) / at_once * ((rows + each - 1) / each);
  };
  int64_t at_once = many_panels;
  while (at_once > 1 && tasks(kRowsMin, at_once) < tasks_wanted) at_once /= 2;
  int64_t each = std::min(rows, kMultiplyRowsMax);
  while (each > kRowsMin && tasks(each, at_once) < tasks_wanted) each -= kRowStep;
  const int64_t blocks = (rows + each - 1) / each;
  const int64_t even = ((rows + blocks - 1) / blocks + kRowUnit - 1) / kRowUnit * kRowUnit;
  return {.rows = std::min(each, even), .stretch = at_once, .at_once = at_once};
}

Sharing Share(const Compute& compute, int64_t rows, int64_t panels) {
  constexpr int64_t kFewRows = 48;
  const Kernels& kernels = compute.kernels();
  const int64_t workers = compute.pool().size();
  if (rows > kFewRows) return ShareManyRows(rows, panels, kernels.many_panels, workers);
  return ShareFewRows(rows, panels, rows == 1 ? kernels.wide_panels : 1, workers);
}

// Runs the product in tasks of some rows by some panels, and hands each task's panels to
// use(panel, first_row, rows, c, c_stride), c being [rows][panel_width].
template <typename Use>
void ForEachPanel(const Compute& compute, const Activations& a, const PackedMatrix& w, Use use) {
  CHECK(a.k == w.k());
  if (a.rows == 0) return;
  if (w.format() == WeightFormat::kInt8) Quantize(compute, a);
  const Kernels& kernels = compute.kernels();
  const Sharing share = Share(compute, a.rows, w.panels());
  const int64_t stretches = (w.panels() + share.stretch - 1) / share.stretch;
  const int64_t row_blocks = (a.rows + share.rows - 1) / share.rows;
  compute.pool().ParallelFor(stretches * row_blocks, [&](int64_t task, int worker) {
    const int64_t begin = task / row_blocks * share.stretch;
    const int64_t end = std::min(begin + share.stretch, w.panels());
    const int64_t first = task % row_blocks * share.rows;
    const int64_t rows = std::min(share.rows, a.rows - first);
    int64_t step = 0;
    for (int64_t panel = begin; panel < end; panel += step) {
      const int64_t left = end - panel;
      step = left >= share.at_once ? share.at_once : a.rows == 1 ? 1 : left;
      const bool more = panel + step < end;
      const float* c = MultiplyBlock(compute, a, w, {first, rows, panel, step, more}, worker);
      const int64_t width = kernels.panel_width;
      for (int64_t i = 0; i < step; ++i) use(panel + i, first, rows, c + i * width, step * width);
    }
  });
}

// use(to, from, columns) for every row of every panel's product, `to` being its place in `out`.
template <typename Use>
void ForEachRowOfPanels(const Compute& compute, const Activations& a, const PackedMatrix& w,
                        float* out, int64_t stride, Use use) {
  const int64_t width = compute.kernels().panel_width;
  ForEachPanel(compute, a, w,
               [&](int64_t panel, int64_t row, int64_t rows, const float* c, int64_t c_stride) {
                 const int64_t columns = std::min(width, w.n() - panel * width);
                 float* to = out + row * stride + panel * width;
                 for (int64_t r = 0; r < rows; ++r) use(to + r * stride, c + r * c_stride, columns);
               });
}

}  // namespace

void MatMul(const Compute& compute, const Activations& a, const PackedMatrix& w, float* out,
            int64_t stride) {
  if (compute.cuda() != nullptr) {
    return cuda::MatMul(*compute.cuda(), a, w, out, stride, /*add=*/false);
  }
  ForEachRowOfPanels(compute, a, w, out, stride, [](float* to, const float* from, int64_t columns) {
    std::memcpy(to, from, columns * sizeof(float));
  });
}

void MatMulAdd(const Compute& compute, const Activations& a, const PackedMatrix& w, float* out,
               int64_t stride) {
  if (compute.cuda() != nullptr) {
    return cuda::MatMul(*compute.cuda(), a, w, out, stride, /*add=*/true);
  }
  ForEachRowOfPanels(compute, a, w, out, stride, [](float* to, const float* from, int64_t columns) {
    for (int64_t i = 0; i < columns; ++i) to[i] += from[i];
  });
}

void MatMulQkv(const Compute& compute, const Activations& a, const PackedMatrix& w,
               const QkvShape& shape, float* qkv, const float* table, std::span<const KvSlot> slots,
               const KvStride& stride) {
  CHECK(w.n() == (shape.heads + 2 * shape.kv_heads) * shape.head_dim);
  CHECK(shape.head_dim % 16 == 0 && std::ssize(slots) == a.rows);
  if (compute.cuda() != nullptr) {
    return cuda::MatMulQkv(*compute.cuda(), a, w, shape, qkv, table, slots, stride);
  }
  MatMul(compute, a, w, qkv, w.n());
  RopeAndStoreKv(compute, shape, qkv, table, slots, stride);
}

void MatMulSwiGlu(const Compute& compute, const Activations& a, const PackedMatrix& w,
                  const Activations& out) {
  CHECK(out.rows == a.rows && out.k * 2 == w.n());
  if (compute.cuda() != nullptr) return cuda::MatMulSwiGlu(*compute.cuda(), a, w, out);
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
  if (compute.cuda() != nullptr) return cuda::MatMulGelu(*compute.cuda(), a, w, out);
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
