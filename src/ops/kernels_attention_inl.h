// Attention of every path; included once by kernels_inl.h.

static_assert(kAttentionPartial % kBlock == 0 && kBlock % kDepth == 0 && kBlock % kPanel == 0);
// Rows whose scores are there at the same time.
constexpr int64_t kScoreRows = 96;
static_assert(kScoreRows >= kAttentionGroupMax && kScoreRows <= kAttendRows);
// Keys of a block that are packed at a time.
constexpr int64_t kPart = kAttentionBlock;
static_assert(kBlock % kPart == 0);

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
  for (int64_t row = 0; row < rows; row += kRowsTogether, p += kRowsTogether * kBlock) {
    const int64_t n = rows - row < kRowsTogether ? rows - row : kRowsTogether;
    for (int64_t d = 0; d < head_dim; d += kPanel) {
      const Element* panel = s.values + d * kBlock;
      float* out = sums + row * stride + d;
      products.MultiplyRows(p + from, kBlock, n, panel + from * kPanel, (whole - from) / kUnit, out,
                            stride, true);
      if (to > whole) {
        // Keys from `to` on are masked: their weight is 0, but their value may be a NaN.
        MaskTail(panel + whole * kPanel, to - whole, s.tail);
        products.MultiplyRows(p + whole, kBlock, n, s.tail, kDepth / kUnit, out, stride, true);
      }
    }
  }
}

// A position of a sequence.
struct KvPlace {
  const KvView& kv;
  int64_t position;

  // Where to fetch while a block's keys from `part` on are read, the block that begins here being
  // the next one. Its pages may lie apart; behind the last one there are none.
  KVCAKE_ISA int64_t Ahead(int64_t part) const {
    const int64_t end = static_cast<int64_t>(kv.pages.size()) * kv.pool->layout().chunk_tokens;
    return position + part < end ? position + part : position;
  }
};

// A path may have its own way for the rows of one token (decoding), whose sums are those of the way
// of many to the bit. Both ask for as much of `next` as they read.
KVCAKE_ISA bool HasFew(const AttendArgs& t);
// s.scores = s.q x the first `keys` keys of a block.
KVCAKE_ISA void ScoreFew(const AttendArgs& t, const AttendScratch& s, Products& products,
                         int64_t block, int64_t keys, const KvPlace& next);
// sums += s.p x these keys' values.
KVCAKE_ISA void AddFew(const AttendArgs& t, const AttendScratch& s, Products& products,
                       int64_t block, int64_t keys, const KvPlace& next, float* sums);

// Adds a packed block's keys, at positions from `block` on, to the sums of the tokens [begin, end),
// kScoreRows rows at most, all of which see some of them.
KVCAKE_ISA void AttendTokens(const AttendArgs& t, const AttendScratch& s, Products& products,
                             int64_t block, int64_t keys, int64_t begin, int64_t end, float* sums) {
  const int64_t dim = t.head_dim, stride = SumsStride(dim);
  const int64_t first = begin * t.group, rows = (end - begin) * t.group;
  const auto visible = [&](int64_t token) { return t.start + token + 1 - block; };
  sums += first * stride;
  for (int64_t row = 0; row < rows; row += kRowsTogether) {
    const int64_t n = rows - row < kRowsTogether ? rows - row : kRowsTogether;
    for (int64_t key = 0; key < keys; key += kPanel) {
      products.MultiplyRows(s.q + (first + row) * dim, dim, n, s.keys + key * dim, dim / kUnit,
                            s.scores + row * kBlock + key, kBlock, false);
    }
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

// Packs the keys of one block and their values, and fetches `next`. The pages of a block may lie
// apart: each part is looked up.
KVCAKE_ISA void PackBlock(const AttendArgs& t, const AttendScratch& s, int64_t block, int64_t keys,
                          const KvPlace& next) {
  for (int64_t part = 0; part < keys; part += kPart) {
    const int64_t n = keys - part < kPart ? keys - part : kPart, ahead = next.Ahead(part);
    PackKeys(t.kv, block + part, n, t.head_dim, s.keys + part * t.head_dim, next.kv.Keys(ahead));
    PackValues(t.kv, block + part, n, t.head_dim, s.values + part * kPanel, next.kv.Values(ahead));
  }
}

// Adds the keys of one block, at positions [block, block + kBlock), to the sums of the rows at or
// after them; fetches `next`.
KVCAKE_ISA void AttendBlock(const AttendArgs& t, const AttendScratch& s, Products& products,
                            int64_t block, const KvPlace& next, float* sums) {
  const int64_t end = t.start + t.tokens, at_once = kScoreRows / t.group;
  const int64_t keys = end - block < kBlock ? end - block : kBlock;
  PackBlock(t, s, block, keys, next);
  if (t.alibi != nullptr) FillAlibi(t, s, block);
  for (int64_t token = block > t.start ? block - t.start : 0; token < t.tokens; token += at_once) {
    const int64_t left = t.tokens - token;
    AttendTokens(t, s, products, block, keys, token, token + (left < at_once ? left : at_once),
                 sums);
  }
}

// As AttendBlock, for the rows of one token.
KVCAKE_ISA void AttendBlockFew(const AttendArgs& t, const AttendScratch& s, Products& products,
                               int64_t block, const KvPlace& next, float* sums) {
  const int64_t padded = PaddedHeadDim(t.head_dim), stride = SumsStride(t.head_dim);
  const int64_t keys = t.start + 1 - block < kBlock ? t.start + 1 - block : kBlock;
  ScoreFew(t, s, products, block, keys, next);
  if (t.alibi != nullptr) {
    FillAlibi(t, s, block);
    AddAlibi(s, t.group, t.group);
  }
  for (int64_t row = 0; row < t.group; ++row) {
    float* scores = s.scores + row * kBlock;
    WeighScores(scores, keys, LargestScore(scores, keys), s.p + row * kBlock, sums + row * stride,
                padded);
  }
  AddFew(t, s, products, block, keys, next, sums);
}

// The blocks of [from, to), which lie in one partial.
KVCAKE_ISA void AttendBlocks(const AttendArgs& t, const AttendScratch& s, Products& products,
                             int64_t from, int64_t to, float* sums) {
  for (int64_t block = from; block < to; block += kBlock) {
    // The last one has nothing to fetch but itself.
    const KvPlace next = block + kBlock < to       ? KvPlace{t.kv, block + kBlock}
                         : t.next_kv.pages.empty() ? KvPlace{t.kv, block}
                                                   : KvPlace{t.next_kv, t.next_from};
    if (t.tokens == 1 && HasFew(t)) {
      AttendBlockFew(t, s, products, block, next, sums);
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
