// What tests of attention share: a sequence in pages, and the ways to compute attention.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/attention.h"
#include "ops/paths_testing.h"

namespace kvcake {

// What computes attention: a path, and on CUDA what multiplies there.
struct Way {
  NumericPath path;
  AttentionBackend backend = AttentionBackend::kAuto;
};

// One sequence's keys, values and queries, in pages that are otherwise full of NaN.
class Sequence {
 public:
  Sequence(const Way& way, std::mt19937& rng, const AttentionShape& shape, int64_t tokens,
           int chunk_tokens)
      : path_(way.path),
        backend_(way.backend),
        shape_(shape),
        tokens_(tokens),
        k_(RandomBf16(rng, tokens * shape.kv_heads * shape.head_dim)),
        v_(RandomBf16(rng, k_.size())),
        q_(RandomFloats(rng, tokens * q_size())) {
    ScaleQueries(1);
    Place(chunk_tokens);
  }

  void ScaleQueries(float by) {
    for (float& q : q_) q *= by;
    kernel_q_ = ToKernels(path_, q_);
  }

  // Copies keys and values into fresh pages of another chunk size, in no particular order; tokens
  // from `limit` on are left out.
  void Place(int chunk_tokens, int64_t limit = std::numeric_limits<int64_t>::max()) {
    ids_.clear();
    table_.clear();
    const KvLayout layout{.layers = 2,
                          .kv_heads = shape_.kv_heads,
                          .head_dim = shape_.head_dim,
                          .chunk_tokens = chunk_tokens};
    const int64_t pages = (tokens_ + chunk_tokens - 1) / chunk_tokens;
    pool_ =
        PagePool::Create(layout, pages * layout.page_bytes(), PageMemoryOf(path_).value()).value();
    for (int64_t i = 0; i < pages; ++i) table_.push_back(*pool_->Draw());
    for (int64_t i = pages; i-- > 0;) ids_.push_back(table_[i].id());
    for (int64_t page = 0; page < pages; ++page) {
      std::vector<uint16_t> values(layout.page_bytes() / sizeof(uint16_t), 0x7f80);
      uint16_t* slab = &values[layout.slab_offset(1) / sizeof(uint16_t)];
      std::fill(slab, slab + 2 * layout.plane_elements(), 0x7fff);
      const int64_t end = std::min({tokens_, limit, (page + 1) * chunk_tokens});
      for (int64_t t = page * chunk_tokens; t < end; ++t) {
        for (int h = 0; h < shape_.kv_heads; ++h) {
          const int64_t from = (t * shape_.kv_heads + h) * shape_.head_dim;
          uint16_t* k = slab + (h * chunk_tokens + t % chunk_tokens) * shape_.head_dim;
          std::copy_n(&k_[from], shape_.head_dim, k);
          std::copy_n(&v_[from], shape_.head_dim, k + layout.plane_elements());
        }
      }
      WritePage(path_, *pool_, ids_[page], std::as_bytes(std::span(values)));
    }
  }

  // Changes KV head 0.
  void SetValue(int64_t token, int dim, float value) {
    v_[token * shape_.kv_heads * shape_.head_dim + dim] = F32ToBf16(value);
    Place(pool_->layout().chunk_tokens);
  }

  int64_t q_size() const { return shape_.heads * shape_.head_dim; }
  int64_t tokens() const { return tokens_; }
  const PagePool& pool() const { return *pool_; }
  const std::vector<float>& q() const { return q_; }
  AttentionSlice Slice(int64_t begin, int64_t end, int64_t out_row = 0) const {
    return {.q = kernel_q_.as<float>() + begin * q_size(),
            .rows = end - begin,
            .start = begin,
            .old_keys = begin,
            .pages = ids_,
            .out_row = out_row};
  }

  // Attention of [begin, end) as bytes of rows.
  std::vector<float> Run(int threads, int64_t begin, int64_t end) const {
    ThreadPool workers(threads);
    const Compute compute(workers, path_);
    ActivationBuffer out(path_, end - begin, q_size());
    const AttentionSlice slice = Slice(begin, end);
    RunAttention(compute, shape_, *pool_, 1, std::span(&slice, 1), q_size(), out.Rows(end - begin),
                 backend_);
    return RowsOf(path_, out.Rows(end - begin));
  }

  // The textbook formula in double precision.
  std::vector<double> Reference(int64_t token, int head) const {
    const int kv_head = head / (shape_.heads / shape_.kv_heads), dim = shape_.head_dim;
    std::vector<double> weights, out(dim);
    double max = -INFINITY, sum = 0;
    for (int64_t t = 0; t <= token; ++t) {
      double score = 0;
      for (int d = 0; d < dim; ++d) {
        score += static_cast<double>(q_[token * q_size() + head * dim + d]) *
                 Bf16ToF32(k_[(t * shape_.kv_heads + kv_head) * dim + d]);
      }
      if (!shape_.alibi_slopes.empty()) {
        const float slope = Bf16ToF32(F32ToBf16(shape_.alibi_slopes[head]));
        const float position = Bf16ToF32(F32ToBf16(static_cast<float>(t)));
        score += Bf16ToF32(F32ToBf16(slope * position)) / std::sqrt(static_cast<double>(dim));
      }
      weights.push_back(score);
      max = std::max(max, score);
    }
    for (double& w : weights) sum += w = std::exp(w - max);
    for (int64_t t = 0; t <= token; ++t) {
      for (int d = 0; d < dim; ++d) {
        out[d] += weights[t] / sum * Bf16ToF32(v_[(t * shape_.kv_heads + kv_head) * dim + d]);
      }
    }
    return out;
  }

 private:
  const NumericPath path_;
  const AttentionBackend backend_;
  const AttentionShape shape_;
  const int64_t tokens_;
  std::vector<uint16_t> k_, v_;  // [token][kv_head][head_dim]
  std::vector<float> q_;         // [token][head][head_dim]
  Buffer kernel_q_;
  std::unique_ptr<PagePool> pool_;
  std::vector<PageHandle> table_;
  std::vector<PageId> ids_;
};

class AttentionTest : public testing::TestWithParam<Way> {
 protected:
  static NumericPath path() { return GetParam().path; }
  static AttentionBackend backend() { return GetParam().backend; }

  void SetUp() override {
    if (!PathAvailable(path())) {
      GTEST_SKIP() << "this machine cannot run " << NumericPathName(path());
    }
    if (const Status can = CheckAttentionBackend(backend(), path(), 64); !can) {
      GTEST_SKIP() << can.error().message;
    }
  }
};

inline bool SameBits(const std::vector<float>& a, const float* b) {
  return std::memcmp(a.data(), b, a.size() * sizeof(float)) == 0;
}

inline std::string WayName(const testing::TestParamInfo<Way>& info) {
  std::string name = NumericPathName(info.param.path);
  std::erase(name, '-');
  if (info.param.backend == AttentionBackend::kMma) name += "_mma";
  if (info.param.backend == AttentionBackend::kWgmma) name += "_wgmma";
  return name;
}

// Runs a suite of AttentionTest for every way.
#define KVCAKE_EVERY_WAY(Suite)                                                 \
  INSTANTIATE_TEST_SUITE_P(                                                     \
      Ways, Suite,                                                              \
      testing::Values(Way{NumericPath::kBf16Amx}, Way{NumericPath::kBf16Dot},   \
                      Way{NumericPath::kF32Fma}, Way{NumericPath::kF32},        \
                      Way{NumericPath::kBf16Tensor, AttentionBackend::kMma},    \
                      Way{NumericPath::kBf16Tensor, AttentionBackend::kWgmma}), \
      WayName)

}  // namespace kvcake
