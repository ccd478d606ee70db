// What kernels write when they are called as matmul and attention call them: nothing but their rows
// (their neighbours belong to others), and a NaN stays one.
#include "ops/kernels.h"

#include <gmock/gmock.h>

#include <cmath>
#include <memory>

#include "ops/packed_matrix.h"
#include "ops/paths_testing.h"

namespace kvcake {
namespace {

using testing::Each;

constexpr float kUntouched = 7.0f;
constexpr int64_t kNeighbours = 32;  // rows

class KernelsTest : public PathTest {
 protected:
  void SetUp() override {
    PathTest::SetUp();
    if (!IsSkipped()) compute_ = std::make_unique<Compute>(pool_, GetParam());
  }

  const Kernels& kernels() const { return compute_->kernels(); }

  // `count` floats of rows, and those behind them.
  static std::span<const float> Behind(const std::vector<float>& all, int64_t count) {
    return std::span(all).subspan(count);
  }

  std::mt19937 rng_{21};
  ThreadPool pool_{1};
  std::unique_ptr<Compute> compute_;
};

TEST_P(KernelsTest, ProductsWriteTheirRowsOnly) {
  const int64_t n = kernels().panel_width;
  for (const int64_t k : {16, 32, 48, 1040}) {
    const auto w = RandomBf16(rng_, n * k);
    const WeightRows weights{w.data(), WeightType::kBf16, n};
    const PackedMatrix bf16(*compute_, std::span(&weights, 1), k);
    const PackedMatrix int8(*compute_, std::span(&weights, 1), k, WeightFormat::kInt8);
    for (const int64_t rows : {1, 2, 11, 12, 13, 15, 16, 17, 24, 31, 32, 33, 47, 64}) {
      const ActivationBuffer buffer(GetParam(), rows, k);
      const Activations a = buffer.Rows(rows);
      SetActivations(GetParam(), RandomFloats(rng_, rows * k), a);
      std::vector<float> c((rows + kNeighbours) * n, kUntouched);
      kernels().multiply({.a = a.data,
                          .a_stride = a.stride,
                          .rows = rows,
                          .b = bf16.Panel(0),
                          .panels = 1,
                          .k = k,
                          .c = c.data(),
                          .scratch = compute_->scratch(0)});
      ASSERT_THAT(Behind(c, rows * n), Each(kUntouched)) << rows << " of " << k;
      for (int64_t r = 0; r < rows; ++r) {
        kernels().quantize_row(a.data + r * a.stride * ActivationBytes(GetParam()), k,
                               a.quantized + r * a.quantized_stride, a.scales + r, a.sums + r);
      }
      kernels().multiply_int8({.a = a.quantized,
                               .a_stride = a.quantized_stride,
                               .row_scales = a.scales,
                               .row_sums = a.sums,
                               .rows = rows,
                               .b = int8.Int8Panel(0),
                               .column_scales = int8.PanelScales(0),
                               .panels = 1,
                               .k = k,
                               .c = c.data(),
                               .scratch = compute_->scratch(0)});
      ASSERT_THAT(Behind(c, rows * n), Each(kUntouched)) << rows << " of " << k << ", int8";
    }
  }
}

class AttendTest : public KernelsTest {
 protected:
  static constexpr int64_t kHeadDim = 48, kTokens = 300, kChunkTokens = 16;

  void SetUp() override {
    KernelsTest::SetUp();
    if (IsSkipped()) return;
    const KvLayout layout{
        .layers = 1, .kv_heads = 1, .head_dim = kHeadDim, .chunk_tokens = kChunkTokens};
    const int64_t pages = (kTokens + kChunkTokens - 1) / kChunkTokens;
    pages_ = PagePool::Create(layout, pages * layout.page_bytes()).value();
    for (int64_t i = 0; i < pages; ++i) {
      ids_.push_back(table_.emplace_back(*pages_->Draw()).id());
      const auto values = RandomBf16(rng_, 2 * layout.plane_elements());
      std::copy(values.begin(), values.end(), pages_->Slab(ids_[i], 0));
    }
  }

  // The last token's rows, one for each head of a group of so many, as a partial's sums.
  std::vector<float> SumsOf(int64_t group, float query) {
    const std::vector<float> q(group * kHeadDim, query);
    std::vector<float> sums((group + kNeighbours) * SumsStride(kHeadDim), kUntouched);
    kernels().attend({.q = q.data(),
                      .tokens = 1,
                      .group = group,
                      .head_dim = kHeadDim,
                      .start = kTokens - 1,
                      .kv = {pages_.get(), ids_, 0, 0},
                      .from = 0,
                      .to = kTokens,
                      .sums = sums.data(),
                      .scratch = compute_->scratch(0)});
    return sums;
  }

  std::unique_ptr<PagePool> pages_;
  std::vector<PageHandle> table_;
  std::vector<PageId> ids_;
};

TEST_P(AttendTest, SumsOfOtherRowsAreLeftAlone) {
  for (const int64_t group : {1, 4, 8, 15, 16, 17, 24, 31, 32, 33, 63, 96}) {
    const auto sums = SumsOf(group, 0.1f);
    ASSERT_THAT(Behind(sums, group * SumsStride(kHeadDim)), Each(kUntouched)) << group;
  }
}

TEST_P(AttendTest, AQueryThatIsNoNumberHasNoResult) {
  for (const int64_t group : {1, 4, 17}) {
    const auto sums = SumsOf(group, NAN);
    for (int64_t row = 0; row < group; ++row) {
      for (int64_t d = 0; d < kHeadDim; ++d) {
        ASSERT_TRUE(std::isnan(sums[row * SumsStride(kHeadDim) + d])) << row << " of " << group;
      }
    }
  }
}

KVCAKE_EVERY_PATH(KernelsTest);
KVCAKE_EVERY_PATH(AttendTest);

}  // namespace
}  // namespace kvcake
