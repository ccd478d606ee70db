// What the kernels of every path share; included once by each of kernels_*.cc, inside their
// anonymous namespace, after they have defined:
//   KVCAKE_ISA       the target attribute of every function; KVCAKE_INLINE the same, inlined
//   kLanes, V        a vector of floats; kPanel columns of a weight panel
//   Element          of activations and of packed attention operands; kUnit of them are one step
//   Quantized        of quantised activations; kInt8Unit of them are one step
//   Load, Store, Splat, MulAdd, Max, Abs, ReduceMax, ReduceAdd, StoreBf16, LoadElement,
//   StoreElement, ShiftExponent, StoreQuantized, LoadInt32
//   kWidePanels, kManyPanels  see Kernels
//   Products         multiplies rows by a panel (kernels_tiles_inl.h)
//   kBlock           keys that attention takes at a time; kAttendRows, the most rows of AttendArgs
//   kDepth           keys by which weights and values are multiplied at a time, a multiple of kUnit
//   WeightOf(x)      exp(x) for x <= 0 or NaN, as Exp or less exact, as the weight of a score
//   Multiply, MultiplyInt8, PackKeys, PackValues, MaskTail, kFew[rows]

static_assert(kAttentionPartial % kBlock == 0 && kBlock % kDepth == 0 && kBlock % kPanel == 0);
// Rows whose scores are there at the same time.
constexpr int64_t kScoreRows = 96;
static_assert(kScoreRows >= kAttentionGroupMax && kScoreRows <= kAttendRows);

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

// ---- attention ----

KVCAKE_INLINE V ExpOf(float x) { return Exp(Splat(x)); }

KVCAKE_ISA void ScaleRow(float* row, int64_t n, V scale) {
  for (int64_t i = 0; i < n; i += kLanes) Store(row + i, Load(row + i) * scale);
}

KVCAKE_ISA void MergeSums(float* total, const float* part, int64_t rows, int64_t head_dim) {
  const int64_t padded = PaddedHeadDim(head_dim), stride = SumsStride(head_dim);
  for (int64_t row = 0; row < rows; ++row, total += stride, part += stride) {
    const float max = total[padded] > part[padded] ? total[padded] : part[padded];
    const V a = ExpOf(total[padded] - max), b = ExpOf(part[padded] - max);
    for (int64_t i = 0; i < padded; i += kLanes) {
      Store(total + i, MulAdd(Load(part + i), b, Load(total + i) * a));
    }
    total[padded] = max;
    total[padded + 1] = total[padded + 1] * a[0] + part[padded + 1] * b[0];
  }
}

KVCAKE_ISA void FinishSums(const float* sums, int64_t head_dim, std::byte* out) {
  const V scale = Splat(1.0f / sums[PaddedHeadDim(head_dim) + 1]);
  Element* to = reinterpret_cast<Element*>(out);
  for (int64_t i = 0; i < head_dim; i += kLanes) StoreElement(to + i, Load(sums + i) * scale);
}

// The memory of one Attend, carved from the worker's scratch. Padded sizes allow head_dim 256.
struct AttendScratch {
  Element* q;     // [rows][head_dim]
  float* scores;  // [kScoreRows][kBlock]
  Element* p;     // [kScoreRows][kBlock], the scores' weights
  Element* keys;  // panels of keys: [kBlock / kPanel][head_dim / kUnit][kPanel][kUnit]
  Element*
      values;     // panels of dimensions: [padded head_dim / kPanel][kBlock / kUnit][kPanel][kUnit]
  Element* tail;  // [kDepth / kUnit][kPanel][kUnit]
  float* total;   // [rows][SumsStride]
  float* part;    // [rows][SumsStride]
  float* alibi;   // [group][kBlock]
};
static_assert(kAttendRows * kAttentionHeadDimMax * sizeof(Element) +
                  kScoreRows * kBlock * (2 * sizeof(float) + sizeof(Element)) +
                  (2 * kBlock * kAttentionHeadDimMax + kPanel * kDepth) * sizeof(Element) +
                  2 * kAttendRows * SumsStride(kAttentionHeadDimMax) * sizeof(float) <=
              kAttendScratchBytes);

KVCAKE_ISA AttendScratch Carve(std::byte* memory) {
  constexpr int64_t kDim = kAttentionHeadDimMax;
  AttendScratch s;
  const auto take = [&memory](auto*& pointer, int64_t elements) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory);
    memory += (elements * sizeof(*pointer) + 63) / 64 * 64;
  };
  take(s.q, kAttendRows * kDim);
  take(s.scores, kScoreRows * kBlock);
  take(s.p, kScoreRows * kBlock);
  take(s.keys, kBlock * kDim);
  take(s.values, kBlock * kDim);
  take(s.tail, kPanel * kDepth);
  take(s.total, kAttendRows * SumsStride(kDim));
  take(s.part, kAttendRows * SumsStride(kDim));
  take(s.alibi, kScoreRows * kBlock);
  return s;
}

// Scores are taken in vectors and in as many keys as values are: those behind `limit` are -inf.
constexpr int64_t ScoresTaken(int64_t limit) {
  constexpr int64_t kStep = kLanes > kDepth ? kLanes : kDepth;
  return (limit + kStep - 1) / kStep * kStep;
}

// The largest of the `limit` scores that a row may see.
KVCAKE_ISA float LargestScore(float* scores, int64_t limit) {
  const int64_t lanes = ScoresTaken(limit);
  for (int64_t i = limit; i < lanes; ++i) scores[i] = -__builtin_inff();
  V largest = Load(scores);
  for (int64_t i = kLanes; i < lanes; i += kLanes) largest = Max(Load(scores + i), largest);
  return ReduceMax(largest);
}

// One row's step of online softmax: turns its scores into weights, and rescales what has been
// summed so far when the largest score grows.
KVCAKE_ISA void WeighScores(const float* scores, int64_t limit, float largest, Element* p,
                            float* sums, int64_t padded) {
  const int64_t lanes = ScoresTaken(limit);
  const float old_max = sums[padded], max = largest > old_max ? largest : old_max;
  V sum = Splat(0.0f);
  for (int64_t i = 0; i < lanes; i += kLanes) {
    const V e = WeightOf(Load(scores + i) - Splat(max));
    sum = sum + e;
    StoreElement(p + i, e);
  }
  if (max != old_max) {
    const V scale = ExpOf(old_max - max);
    ScaleRow(sums, padded, scale);
    sums[padded] = max;
    sums[padded + 1] *= scale[0];
  }
  sums[padded + 1] += ReduceAdd(sum);
}

// What the position of each key of the block is worth to each head of the group. Slope and product
// are rounded to bf16, as Hugging Face transformers has them.
KVCAKE_ISA void FillAlibi(const AttendArgs& t, const AttendScratch& s, int64_t block) {
  const float root = __builtin_sqrtf(static_cast<float>(t.head_dim));
  for (int64_t head = 0; head < t.group; ++head) {
    for (int64_t i = 0; i < kBlock; ++i) {
      const float position = Bf16ToF32(F32ToBf16(static_cast<float>(block + i)));
      s.alibi[head * kBlock + i] = Bf16ToF32(F32ToBf16(t.alibi[head] * position)) / root;
    }
  }
}

// Adds it to the scores of `rows` rows, the first of which is of the group's first head.
KVCAKE_ISA void AddAlibi(const AttendScratch& s, int64_t group, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    float* scores = s.scores + row * kBlock;
    const float* bias = s.alibi + row % group * kBlock;
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      Store(scores + i, Load(scores + i) + Load(bias + i));
    }
  }
}

// sums[rows] += p[rows][from, to) x values[from, to), `from` being a multiple of kDepth.
KVCAKE_ISA void AddPackedValues(const AttendScratch& s, Products& products, const Element* p,
                                int64_t rows, int64_t from, int64_t to, float* sums,
                                int64_t head_dim) {
  const int64_t stride = SumsStride(head_dim), whole = to / kDepth * kDepth;
  for (int64_t d = 0; d < head_dim; d += kPanel, sums += kPanel) {
    const Element* panel = s.values + d * kBlock;
    products.MultiplyRows(p + from, kBlock, rows, panel + from * kPanel, (whole - from) / kUnit,
                          sums, stride, true);
    if (to > whole) {
      // Keys from `to` on are masked: their weight is 0, but their value may be a NaN.
      MaskTail(panel + whole * kPanel, to - whole, s.tail);
      products.MultiplyRows(p + whole, kBlock, rows, s.tail, kDepth / kUnit, sums, stride, true);
    }
  }
}

struct KvBlock {
  const uint16_t* keys;
  const uint16_t* values;
};

KVCAKE_ISA KvBlock BlockAt(const KvView& kv, int64_t position) {
  return {kv.Keys(position), kv.Values(position)};
}

// Adds a packed block's keys, at positions from `block` on, to the sums of the tokens [begin, end),
// kScoreRows rows at most, all of which see some of them.
KVCAKE_ISA void AttendTokens(const AttendArgs& t, const AttendScratch& s, Products& products,
                             int64_t block, int64_t keys, int64_t begin, int64_t end, float* sums) {
  const int64_t dim = t.head_dim, stride = SumsStride(dim);
  const int64_t first = begin * t.group, rows = (end - begin) * t.group;
  const auto visible = [&](int64_t token) { return t.start + token + 1 - block; };
  sums += first * stride;
  for (int64_t key = 0; key < keys; key += kPanel) {
    products.MultiplyRows(s.q + first * dim, dim, rows, s.keys + key * dim, dim / kUnit,
                          s.scores + key, kBlock, false);
  }
  if (t.alibi != nullptr) AddAlibi(s, t.group, rows);
  // A row's weights wait for its largest score: the other rows' are found meanwhile.
  float largest[kScoreRows];
  const auto limit = [&](int64_t row) {
    const int64_t seen = visible(begin + row / t.group);
    return seen < kBlock ? seen : kBlock;
  };
  for (int64_t row = 0; row < rows; ++row) {
    largest[row] = LargestScore(s.scores + row * kBlock, limit(row));
  }
  for (int64_t row = 0; row < rows; ++row) {
    WeighScores(s.scores + row * kBlock, limit(row), largest[row], s.p + row * kBlock,
                sums + row * stride, PaddedHeadDim(dim));
  }
  // The first tokens see a part of the block, each one key more; what the very first sees, all do.
  const int64_t common = visible(begin) < kBlock ? visible(begin) / kDepth * kDepth : kBlock;
  AddPackedValues(s, products, s.p, rows, 0, common, sums, dim);
  if (common == kBlock) return;
  int64_t token = begin;
  for (; token < end && visible(token) < kBlock; ++token) {
    const int64_t row = (token - begin) * t.group;
    AddPackedValues(s, products, s.p + row * kBlock, t.group, common, visible(token),
                    sums + row * stride, dim);
  }
  if (token < end) {
    const int64_t row = (token - begin) * t.group;
    AddPackedValues(s, products, s.p + row * kBlock, rows - row, common, kBlock,
                    sums + row * stride, dim);
  }
}

// Adds the keys of one block, at positions [block, block + kBlock), to the sums of the rows at or
// after them; fetches `next`.
KVCAKE_ISA void AttendBlock(const AttendArgs& t, const AttendScratch& s, Products& products,
                            int64_t block, const KvBlock& next, float* sums) {
  const int64_t end = t.start + t.tokens, at_once = kScoreRows / t.group;
  const int64_t keys = end - block < kBlock ? end - block : kBlock;
  PackKeys(t.kv, block, keys, t.head_dim, s.keys, next.keys);
  PackValues(t.kv, block, keys, t.head_dim, s.values, next.values);
  if (t.alibi != nullptr) FillAlibi(t, s, block);
  for (int64_t token = block > t.start ? block - t.start : 0; token < t.tokens; token += at_once) {
    const int64_t left = t.tokens - token;
    AttendTokens(t, s, products, block, keys, token, token + (left < at_once ? left : at_once),
                 sums);
  }
}

// As AttendBlock, for the rows of one token that kFew has.
KVCAKE_ISA void AttendBlockFew(const AttendArgs& t, const AttendScratch& s, int64_t block,
                               const KvBlock& next, float* sums) {
  const int64_t dim = t.head_dim, padded = PaddedHeadDim(dim), stride = SumsStride(dim);
  const int64_t keys = t.start + 1 - block < kBlock ? t.start + 1 - block : kBlock;
  const FewRows<Element>& few = kFew[t.group];
  for (int64_t key = 0; key < keys; key += kLanes) {
    few.score(s.q, t.kv.Keys(block + key), next.keys + key * dim, dim, s.scores + key, kBlock);
  }
  if (t.alibi != nullptr) {
    FillAlibi(t, s, block);
    AddAlibi(s, t.group, t.group);
  }
  for (int64_t row = 0; row < t.group; ++row) {
    float* scores = s.scores + row * kBlock;
    WeighScores(scores, keys, LargestScore(scores, keys), s.p + row * kBlock, sums + row * stride,
                padded);
  }
  const int64_t run = t.kv.pool->layout().chunk_tokens % kBlock == 0 ? kBlock : 16;
  for (int64_t key = 0; key < keys; key += run) {
    const int64_t n = keys - key < run ? keys - key : run;
    const uint16_t* values = t.kv.Values(block + key);
    for (int64_t d = 0; d < dim; d += kPanel) {
      few.add_values(s.p + key, kBlock, values + d, next.values + key * dim + d, n, dim, dim - d,
                     sums + d, stride);
    }
  }
}

// The blocks of [from, to), which lie in one partial.
KVCAKE_ISA void AttendBlocks(const AttendArgs& t, const AttendScratch& s, Products& products,
                             int64_t from, int64_t to, float* sums) {
  for (int64_t block = from; block < to; block += kBlock) {
    // The last one has nothing to fetch but itself.
    const KvBlock next = block + kBlock < to       ? BlockAt(t.kv, block + kBlock)
                         : t.next_kv.pages.empty() ? BlockAt(t.kv, block)
                                                   : BlockAt(t.next_kv, t.next_from);
    if (t.tokens == 1 && t.group < static_cast<int64_t>(kFew.size())) {
      AttendBlockFew(t, s, block, next, sums);
    } else {
      AttendBlock(t, s, products, block, next, sums);
    }
  }
}

KVCAKE_ISA void ClearSums(float* sums, int64_t rows, int64_t head_dim) {
  const int64_t padded = PaddedHeadDim(head_dim), stride = SumsStride(head_dim);
  for (int64_t row = 0; row < rows; ++row, sums += stride) {
    for (int64_t i = 0; i < padded; i += kLanes) Store(sums + i, Splat(0.0f));
    sums[padded] = -__builtin_inff();
    sums[padded + 1] = 0.0f;
  }
}

KVCAKE_ISA void Attend(const AttendArgs& t) {
  const AttendScratch s = Carve(t.scratch);
  Products products;
  const int64_t rows = t.tokens * t.group, end = t.start + t.tokens;
  const int64_t stride = SumsStride(t.head_dim);
  for (int64_t row = 0; row < rows; ++row) {
    const float* q = t.q + row / t.group * t.q_stride + row % t.group * t.head_dim;
    for (int64_t i = 0; i < t.head_dim; i += kLanes) {
      StoreElement(s.q + row * t.head_dim + i, Load(q + i));
    }
  }
  if (t.to >= 0) {
    if (t.from % kAttentionPartial == 0) ClearSums(t.sums, rows, t.head_dim);
    AttendBlocks(t, s, products, t.from, t.to, t.sums);
    return;
  }
  for (int64_t from = 0; from < end; from += kAttentionPartial) {
    const int64_t to = from + kAttentionPartial < end ? from + kAttentionPartial : end;
    const int64_t row0 = from > t.start ? (from - t.start) * t.group : 0;
    float* sums = from == 0 ? s.total : s.part;
    ClearSums(sums + row0 * stride, rows - row0, t.head_dim);
    AttendBlocks(t, s, products, from, to, sums);
    if (from > 0) {
      MergeSums(s.total + row0 * stride, s.part + row0 * stride, rows - row0, t.head_dim);
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t to = row / t.group * t.out_stride + row % t.group * t.head_dim;
    FinishSums(s.total + row * stride, t.head_dim, t.out + to * sizeof(Element));
  }
}

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
