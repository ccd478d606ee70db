// A numeric path is a promise about bits, whatever the machine and its instructions: chunks name
// the path that made them. Here digests stand for the bits of every operation. Who changes one has
// changed the path: what older builds have stored is then right to rounding only.
#include <string>

#include "base/hash.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/paths_testing.h"

namespace kvcake {
namespace {

class SameBitsTest : public PathTest {
 protected:
  // In [-1, 1), made of nothing that a C++ library may do in its own way.
  std::vector<float> Random(int64_t n) {
    std::vector<float> values(n);
    for (float& value : values) value = static_cast<float>(static_cast<int32_t>(rng_())) * 0x1p-31f;
    return values;
  }

  ActivationBuffer RandomRows(int64_t rows, int64_t k) {
    ActivationBuffer buffer(GetParam(), rows, k);
    auto x = Random(rows * k);
    for (float& value : x) value *= 8;  // also where exp and erf saturate
    SetActivations(GetParam(), x, buffer.Rows(rows));
    return buffer;
  }

  void Add(const std::vector<float>& values) { hash_.Update(std::as_bytes(std::span(values))); }
  void Add(const std::vector<uint16_t>& values) { hash_.Update(std::as_bytes(std::span(values))); }
  void Add(const Activations& a) {
    const int64_t bytes = ActivationBytes(GetParam());
    for (int64_t r = 0; r < a.rows; ++r) {
      hash_.Update(std::span(a.data + r * a.stride * bytes, a.k * bytes));
    }
  }

  // Against the path's digest of all that was added since the last one.
  void ExpectDigest(const char* bf16_amx, const char* bf16_dot, const char* f32_fma,
                    const char* f32) {
    const char* want = GetParam() == NumericPath::kBf16Amx   ? bf16_amx
                       : GetParam() == NumericPath::kBf16Dot ? bf16_dot
                       : GetParam() == NumericPath::kF32Fma  ? f32_fma
                                                             : f32;
    EXPECT_EQ(ToHex(hash_.Finish()).substr(0, 16), want);
  }

  void AddProducts(WeightFormat format) {
    const Compute compute(pool_, GetParam());
    // One row, a few and many; columns past the last panel; k in several blocks.
    for (int64_t rows : {1, 2, 3, 4, 5, 6, 31}) {
      for (int64_t k : {16, 400, 4112}) {
        const int64_t n = 16 * (1 + rows % 5);
        const auto w = Random(n * k), up_w = Random(n * k), bias = Random(n);
        const WeightRows gate{w.data(), WeightType::kF32, n, bias.data()};
        const WeightRows up{up_w.data(), WeightType::kF32, n, bias.data()};
        const WeightRows odd{w.data(), WeightType::kF32, n - 5, bias.data()};
        const ActivationBuffer a = RandomRows(rows, k), out(GetParam(), rows, n);
        auto sums = Random(rows * n);
        MatMulAdd(compute, a.Rows(rows), PackedMatrix(compute, std::span(&odd, 1), k, format),
                  sums.data(), n);
        Add(sums);
        MatMulGelu(compute, a.Rows(rows), PackedMatrix(compute, std::span(&gate, 1), k, format),
                   out.Rows(rows));
        Add(out.Rows(rows));
        MatMulSwiGlu(compute, a.Rows(rows), PackedMatrix::GateUp(compute, gate, up, k, format),
                     out.Rows(rows));
        Add(out.Rows(rows));
      }
    }
  }

  // Prefill of `rows` tokens, and the last one decoded.
  void AddAttention(const AttentionShape& shape, int64_t start, int64_t rows) {
    const Compute compute(pool_, GetParam());
    const KvLayout layout{
        .layers = 1, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim, .chunk_tokens = 128};
    const int64_t end = start + rows, q_size = shape.heads * shape.head_dim;
    const int64_t pages = (end + layout.chunk_tokens - 1) / layout.chunk_tokens;
    const auto pool = PagePool::Create(layout, pages * layout.page_bytes()).value();
    std::vector<PageHandle> table;
    std::vector<PageId> ids;
    for (int64_t i = 0; i < pages; ++i) {
      ids.push_back(table.emplace_back(*pool->Draw()).id());
      const auto values = Random(2 * layout.plane_elements());
      for (size_t j = 0; j < values.size(); ++j) pool->Slab(ids[i], 0)[j] = F32ToBf16(values[j]);
    }
    const auto q = Random(rows * q_size);
    ActivationBuffer out(GetParam(), rows + 1, q_size);
    const AttentionSlice slices[] = {
        {.q = q.data(), .rows = rows, .start = start, .pages = ids},
        {.q = &q[(rows - 1) * q_size], .rows = 1, .start = end - 1, .pages = ids, .out_row = rows}};
    RunAttention(compute, shape, *pool, 0, slices, q_size, out.Rows(rows + 1));
    Add(out.Rows(rows + 1));
  }

  std::mt19937 rng_{1};
  ThreadPool pool_{2};

 private:
  Xxh3_128Stream hash_;
};

TEST_P(SameBitsTest, Bf16Products) {
  AddProducts(WeightFormat::kBf16);
  ExpectDigest("539494f419fc1ded", "4b2c33bc8af49aa6", "c848fb924c88e8d0", "2f5d12f0d24f368b");
}

TEST_P(SameBitsTest, Int8Products) {
  AddProducts(WeightFormat::kInt8);
  ExpectDigest("57b83e1dd6efafcc", "57b83e1dd6efafcc", "75b1e61353b3b908", "60b43e20abf880cb");
}

TEST_P(SameBitsTest, Attention) {
  AddAttention({4, 4, 48}, 0, 70);
  AddAttention({6, 2, 64}, 1000, 90);
  AddAttention({16, 2, 16}, 130, 33);
  AddAttention({4, 2, 128, {0.7f, 0.25f, 0.01f, 3e-4f}}, 2047, 2);
  ExpectDigest("b597321f21a43ade", "dfbfba7081b43af2", "f9f8d4b8720c4cd4", "c67d60c3ce6f31dc");
}

TEST_P(SameBitsTest, Elementwise) {
  const Compute compute(pool_, GetParam());
  for (const int64_t n : {16, 576}) {
    const auto x = Random(7 * n), weight = Random(n), bias = Random(n);
    const NormWeights norm{.weight = weight.data(), .bias = bias.data(), .eps = 1e-5f};
    const ActivationBuffer out(GetParam(), 7, n);
    RmsNorm(compute, x.data(), norm, out.Rows(7));
    Add(out.Rows(7));
    LayerNorm(compute, x.data(), norm, out.Rows(7));
    Add(out.Rows(7));
  }
  for (const int dim : {16, 48, 128}) {
    const QkvShape shape{.heads = 3, .kv_heads = 2, .head_dim = dim};
    auto qkv = Random((3 + 2 * 2) * dim);
    const auto table = Random(dim), weight = Random(dim);
    const NormWeights norm{.weight = weight.data(), .eps = 1e-5f};
    std::vector<uint16_t> k(2 * dim), v(2 * dim);
    const KvSlot slot{k.data(), v.data()};
    NormHeads(compute, shape, norm, norm, qkv);
    RopeAndStoreKv(compute, shape, qkv.data(), table.data(), std::span(&slot, 1), {.head = dim});
    Add(qkv);
    Add(k);
    Add(v);
  }
  ExpectDigest("a875802a56198dae", "a875802a56198dae", "e49684418e0e9a71", "b5aa7eef4fb4b682");
}

KVCAKE_EVERY_PATH(SameBitsTest);

}  // namespace
}  // namespace kvcake
