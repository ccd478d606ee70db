// What the kernels of every path share; included once by each of kernels_*.cc, inside their
// anonymous namespace, after they have defined:
//   KVCAKE_ISA       the target attribute of every function; KVCAKE_INLINE the same, inlined
//   kLanes, V        a vector of floats; kPanel columns of a weight panel
//   Element          of activations and of packed attention operands; kUnit of them are one step
//   Quantized        of quantised activations; kInt8Unit of them are one step
//   Load, Store, Splat, MulAdd, Max, Abs, ReduceMax, ReduceAdd, StoreBf16, LoadElement,
//   StoreElement, ShiftExponent, StoreQuantized, LoadInt32
//   kWidePanels, kManyPanels, kAttendRows  see Kernels; kBlock is its attention_block
//   Products         multiplies rows by a panel (kernels_tiles_inl.h), kRowsTogether at best
//   kDepth           keys by which weights and values are multiplied at a time, a multiple of kUnit
//   WeightOf(x)      exp(x) for x <= 0 or NaN, as Exp or less exact, as the weight of a score
//   Multiply, MultiplyInt8, PackKeys, PackValues, MaskTail
// and, after this, HasFew, ScoreFew, AddFew (kernels_attention_inl.h).

// Lanes of a where the mask is set, else of b; for vectors that know ?: themselves.
template <typename Mask>
KVCAKE_INLINE V Select(Mask mask, V a, V b) {
  return mask ? a : b;
}

// exp(x) for x up to 88, to 2 units in the last place; 0 below -87. A NaN stays one.
KVCAKE_INLINE V Exp(V x) {
  const V magic = Splat(12582912.0f);  // 1.5 * 2^23: rounds to an integer
  const V shifted = MulAdd(x, Splat(1.44269504088896341f), magic);
  const V n = shifted - magic;
  V r = MulAdd(n, Splat(-0.693359375f), x);
  r = MulAdd(n, Splat(2.12194440e-4f), r);
  V p = Splat(1.9875691500e-4f);
  p = MulAdd(p, r, Splat(1.3981999507e-3f));
  p = MulAdd(p, r, Splat(8.3334519073e-3f));
  p = MulAdd(p, r, Splat(4.1665795894e-2f));
  p = MulAdd(p, r, Splat(1.6666665459e-1f));
  p = MulAdd(p, r, Splat(5.0000001201e-1f));
  p = MulAdd(p, r * r, r) + Splat(1.0f);
  return Select(x < Splat(-87.0f), Splat(0.0f), ShiftExponent(p, shifted));
}

KVCAKE_ISA void SwiGlu(const float* c, int64_t c_stride, int64_t rows, std::byte* out,
                       int64_t out_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    const V gate = Load(c + row * c_stride), up = Load(c + row * c_stride + kLanes);
    const V silu = gate / (Splat(1.0f) + Exp(-Max(Splat(-88.0f), gate)));
    StoreElement(reinterpret_cast<Element*>(out) + row * out_stride, silu * up);
  }
}

// x * P(x^2) / Q(x^2) on [-4, 4], and the sign beyond; the error is below 5e-7. A NaN stays one.
KVCAKE_INLINE V Erf(V x) {
  const V z = x * x;
  V p = Splat(-2.72614225801306e-10f);
  p = MulAdd(p, z, Splat(2.77068142495902e-08f));
  p = MulAdd(p, z, Splat(-2.10102402082508e-06f));
  p = MulAdd(p, z, Splat(-5.69250639462346e-05f));
  p = MulAdd(p, z, Splat(-7.34990630326855e-04f));
  p = MulAdd(p, z, Splat(-2.95459980854025e-03f));
  p = MulAdd(p, z, Splat(-1.60960333262415e-02f));
  V q = Splat(-1.45660718464996e-05f);
  q = MulAdd(q, z, Splat(-2.13374055278905e-04f));
  q = MulAdd(q, z, Splat(-1.68282697438203e-03f));
  q = MulAdd(q, z, Splat(-7.37332916720468e-03f));
  q = MulAdd(q, z, Splat(-1.42647390514189e-02f));
  const V erf = x * p / q;
  return Select(x < Splat(-4.0f), Splat(-1.0f), Select(x > Splat(4.0f), Splat(1.0f), erf));
}

KVCAKE_ISA void Gelu(const float* c, int64_t c_stride, int64_t rows, int64_t columns,
                     std::byte* out, int64_t out_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    Element* to = reinterpret_cast<Element*>(out) + row * out_stride;
    for (int64_t i = 0; i < columns; i += kLanes) {
      const V x = Load(c + row * c_stride + i);
      const V erf = Erf(x * Splat(0.70710678118654752f));
      StoreElement(to + i, Splat(0.5f) * x * (Splat(1.0f) + erf));
    }
  }
}

KVCAKE_INLINE V RmsScale(const float* x, int64_t n, float eps) {
  V squares = Splat(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) squares = MulAdd(Load(x + i), Load(x + i), squares);
  const float mean = ReduceAdd(squares) / static_cast<float>(n);
  return Splat(1.0f / __builtin_sqrtf(mean + eps));
}

KVCAKE_ISA void RmsNormF32(float* x, const float* weight, int64_t n, float eps) {
  const V scale = RmsScale(x, n, eps);
  for (int64_t i = 0; i < n; i += kLanes) Store(x + i, Load(x + i) * scale * Load(weight + i));
}

KVCAKE_ISA void LayerNormRow(const float* x, const float* weight, const float* bias, int64_t n,
                             float eps, std::byte* out) {
  V sum = Splat(0.0f), squares = Splat(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) sum = sum + Load(x + i);
  const V mean = Splat(ReduceAdd(sum) / static_cast<float>(n));
  for (int64_t i = 0; i < n; i += kLanes) {
    const V centred = Load(x + i) - mean;
    squares = MulAdd(centred, centred, squares);
  }
  const float variance = ReduceAdd(squares) / static_cast<float>(n);
  const V scale = Splat(1.0f / __builtin_sqrtf(variance + eps));
  Element* to = reinterpret_cast<Element*>(out);
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreElement(to + i, MulAdd((Load(x + i) - mean) * scale, Load(weight + i), Load(bias + i)));
  }
}

KVCAKE_ISA void RmsNormRow(const float* x, const float* weight, int64_t n, float eps,
                           std::byte* out) {
  const V scale = RmsScale(x, n, eps);
  Element* to = reinterpret_cast<Element*>(out);
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreElement(to + i, Load(x + i) * scale * Load(weight + i));
  }
}

KVCAKE_ISA void Rotate(float* x, const float* table, int64_t head_dim, float scale) {
  const int64_t half = head_dim / 2;
  const V s = Splat(scale);
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const V a = Load(x + i), b = Load(x + half + i);
    const V cos = Load(table + i), sin = Load(table + half + i);
    Store(x + i, (a * cos - b * sin) * s);
    Store(x + half + i, (b * cos + a * sin) * s);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i], cos = table[i], sin = table[half + i];
    x[i] = (a * cos - b * sin) * scale;
    x[half + i] = (b * cos + a * sin) * scale;
  }
}

KVCAKE_ISA void StoreRowBf16(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; i += kLanes) StoreBf16(out + i, Load(x + i));
}

// ---- quantised products ----

KVCAKE_ISA void QuantizeRow(const std::byte* row, int64_t n, std::byte* out, float* scale,
                            float* sum) {
  const auto* x = reinterpret_cast<const Element*>(row);
  V max = Splat(0.0f), unbounded = Splat(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const V v = LoadElement(x + i);
    max = Max(Abs(v), max);
    unbounded = MulAdd(v, Splat(0.0f), unbounded);  // a NaN after the first NaN or infinity
  }
  const float largest = ReduceMax(max);
  const bool finite = ReduceAdd(unbounded) == 0.0f;
  const V inverse = Splat(finite && largest >= kSmallestInt8Row ? 127.0f / largest : 0.0f);
  const V magic = Splat(12582912.0f);  // 1.5 * 2^23: rounds to an integer, ties to even
  V total = Splat(0.0f);               // exact: below 2^23
  for (int64_t i = 0; i < n; i += kLanes) {
    const V v = finite ? LoadElement(x + i) : Splat(0.0f);
    const V shifted = v * inverse + magic;  // not fused: the same on every path
    total = total + (shifted - magic);
    StoreQuantized(reinterpret_cast<Quantized*>(out) + i, shifted);
  }
  *sum = ReduceAdd(total);
  *scale = finite ? largest / 127.0f : __builtin_nanf("");
}

// Turns the integers that m.c holds into the result.
KVCAKE_ISA void ScaleBack(const MultiplyInt8Args& m) {
  const int64_t columns = m.panels * kPanel;
  for (int64_t row = 0; row < m.rows; ++row) {
    float* c = m.c + row * columns;
    const auto offset = static_cast<int32_t>(m.row_sums[row]) * kInt8Offset;
    const V scale = Splat(m.row_scales[row]);
    for (int64_t i = 0; i < columns; i += kLanes) {
      const V sum = LoadInt32(reinterpret_cast<const int32_t*>(c + i), offset);
      Store(c + i, sum * scale * Load(m.column_scales + i));
    }
  }
}

#include "ops/kernels_attention_inl.h"

constexpr Kernels kKernels = {
    .int8_unit = kInt8Unit,
    .panel_width = kPanel,
    .wide_panels = kWidePanels,
    .many_panels = kManyPanels,
    .attention_block = kBlock,
    .attend_rows = kAttendRows,
    .multiply = Multiply,
    .multiply_int8 = MultiplyInt8,
    .quantize_row = QuantizeRow,
    .swiglu = SwiGlu,
    .gelu = Gelu,
    .attend = Attend,
    .merge_sums = MergeSums,
    .finish_sums = FinishSums,
    .rms_norm = RmsNormRow,
    .rms_norm_f32 = RmsNormF32,
    .layer_norm = LayerNormRow,
    .rotate = Rotate,
    .store_bf16 = StoreRowBf16,
};
