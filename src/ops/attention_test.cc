#include "ops/attention.h"

#include <fmt/core.h>

#include <cmath>
#include <cstring>

#include "ops/attention_testing.h"

namespace kvcake {
namespace {

// An object and a plan that are used for one thing after another.
class OneObject {
 public:
  OneObject(const Sequence& sequence, const AttentionShape& shape, int64_t tokens, NumericPath path,
            AttentionBackend backend)
      : sequence_(sequence),
        path_(path),
        compute_(workers_, path),
        attention_(Attention::Create(compute_, shape, sequence.pool(), {tokens, tokens}, backend)),
        plan_(attention_->NewPlan()) {}
  std::vector<float> Run(const AttentionSlice& slice, int64_t rows) {
    ActivationBuffer out(path_, rows, sequence_.q_size());
    plan_->Set(std::span(&slice, 1));
    attention_->Run(*plan_, 1, sequence_.q_size(), out.Rows(rows));
    return RowsOf(path_, out.Rows(rows));
  }

 private:
  const Sequence& sequence_;
  const NumericPath path_;
  ThreadPool workers_{2};
  const Compute compute_;
  const std::unique_ptr<Attention> attention_;
  const std::unique_ptr<AttentionPlan> plan_;
};

TEST_P(AttentionTest, AgreesWithTheFormula) {
  std::mt19937 rng(1);
  for (const AttentionShape& shape :
       {AttentionShape{9, 3, 64}, AttentionShape{2, 2, 16}, AttentionShape{8, 1, 48},
        AttentionShape{4, 1, 128}, AttentionShape{2, 1, 256}, AttentionShape{97 - 1, 1, 32},
        AttentionShape{5, 5, 32, {0.7f, 0.25f, 0.1f, 0.01f, 3e-4f}},
        AttentionShape{6, 2, 64, {0.9f, 0.5f, 0.0f, 0.03f, 0.33f, 1e-6f}}}) {
    if (!CheckAttentionBackend(backend(), path(), shape.head_dim)) continue;
    for (int64_t tokens : {1, 15, 64, 65, 200, 257, 290}) {
      Sequence sequence(GetParam(), rng, shape, tokens, 32);
      // The scale of real queries: scores of order one.
      sequence.ScaleQueries(1 / std::sqrt(static_cast<float>(shape.head_dim)));
      const auto out = sequence.Run(2, 0, tokens);
      const double tolerance = Bf16Products(path()) ? 0.03 : 2e-5;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int h = 0; h < shape.heads; ++h) {
          const auto want = sequence.Reference(t, h);
          for (int d = 0; d < shape.head_dim; ++d) {
            ASSERT_NEAR(out[(t * shape.heads + h) * shape.head_dim + d], want[d], tolerance)
                << "token " << t << " head " << h << " dim " << d << " of " << shape.head_dim;
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, LongContextsAgreeAcrossPartials) {
  std::mt19937 rng(2);
  for (const std::vector<float>& slopes : {std::vector<float>{}, {0.01f, 0.003f}}) {
    const AttentionShape shape{2, 1, 32, slopes};
    const int64_t tokens = 2 * kAttentionPartial + 77;
    Sequence sequence(GetParam(), rng, shape, tokens, 64);
    sequence.ScaleQueries(0.4f);
    const auto out = sequence.Run(2, 0, tokens);
    for (int64_t t : {1000, 1023, 1024, 1025, 2047, 2048, 2124}) {
      const auto want = sequence.Reference(t, 1);
      for (int d = 0; d < 32; ++d) {
        ASSERT_NEAR(out[(t * 2 + 1) * 32 + d], want[d], Bf16Products(path()) ? 0.02 : 2e-5);
      }
    }
  }
}

// The promise of the header: prefill, any slicing, decode, any thread count and chunk size.
TEST_P(AttentionTest, EverySlicingGivesTheSameBits) {
  std::mt19937 rng(3);
  for (const AttentionShape& shape : {AttentionShape{6, 2, 32}, AttentionShape{5, 1, 80},
                                      AttentionShape{4, 2, 32, {0.5f, 0.1f, 0.02f, 0.004f}}}) {
    const int64_t tokens = kAttentionPartial + 150;
    Sequence sequence(GetParam(), rng, shape, tokens, 64);
    const auto want = sequence.Run(1, 0, tokens);
    for (int chunk_tokens : {16, 48, 128}) {
      sequence.Place(chunk_tokens);
      for (int threads : {1, 2, 3}) {
        for (int64_t begin = 0; begin < tokens;) {
          const int64_t end = std::min<int64_t>(tokens, begin + 1 + rng() % 400);
          const auto out = sequence.Run(threads, begin, end);
          ASSERT_TRUE(SameBits(out, &want[begin * sequence.q_size()]))
              << begin << ".." << end << " threads " << threads << " chunk " << chunk_tokens;
          begin = end;
        }
        for (int64_t token : {0l, 62l, 63l, 64l, 1023l, 1024l, 1025l, tokens - 1}) {
          const auto out = sequence.Run(threads, token, token + 1);
          ASSERT_TRUE(SameBits(out, &want[token * sequence.q_size()])) << "decode " << token;
        }
      }
    }
  }
}

// So many rows that each is computed in one piece, partial after partial; later ones also alone.
TEST_P(AttentionTest, ManyRowsOfManyPartialsGiveTheSameBits) {
  std::mt19937 rng(9);
  const int64_t tokens = 2 * kAttentionPartial + 52;
  Sequence sequence(GetParam(), rng, {8, 2, 64}, tokens, 128);
  const auto want = sequence.Run(2, 0, tokens);
  for (const auto& [begin, end] :
       {std::pair(1000l, 1070l), {1023l, 1024l}, {2047l, 2048l}, {2048l, 2049l}, {2030l, tokens}}) {
    ASSERT_TRUE(SameBits(sequence.Run(2, begin, end), &want[begin * sequence.q_size()]))
        << begin << ".." << end;
  }
}

// Single rows take another way through the kernels when few heads share a KV head.
TEST_P(AttentionTest, EveryGroupDecodesToTheBitsOfPrefill) {
  std::mt19937 rng(8);
  for (int group = 1; group <= 10; ++group) {
    const int head_dim = 16 * static_cast<int>(1 + rng() % 8);
    const AttentionShape shape{2 * group, 2, head_dim};
    const int64_t tokens = 150;
    SCOPED_TRACE(fmt::format("groups of {} heads of {}", group, head_dim));
    Sequence sequence(GetParam(), rng, shape, tokens, 128);
    const auto want = sequence.Run(1, 0, tokens);
    for (int chunk_tokens : {16, 64}) {
      sequence.Place(chunk_tokens);
      for (int64_t token = 0; token < tokens; token += 1 + rng() % 4) {
        const auto out = sequence.Run(2, token, token + 1);
        ASSERT_TRUE(SameBits(out, &want[token * sequence.q_size()])) << "decode " << token;
      }
    }
  }
}

TEST_P(AttentionTest, SequencesOfABatchDoNotSeeEachOther) {
  std::mt19937 rng(4);
  const AttentionShape shape{4, 2, 64};
  const int64_t tokens = 1300;
  Sequence sequence(GetParam(), rng, shape, tokens, 64);
  const auto want = sequence.Run(1, 0, tokens);
  ThreadPool workers(2);
  const Compute compute(workers, path());
  const std::vector<std::pair<int64_t, int64_t>> parts = {{1200, 1201}, {0, 130},     {64, 65},
                                                          {1000, 1100}, {1299, 1300}, {1024, 1025}};
  std::vector<AttentionSlice> slices;
  int64_t rows = 0;
  for (const auto& [begin, end] : parts) {
    slices.push_back(sequence.Slice(begin, end, rows));
    rows += end - begin;
  }
  ActivationBuffer out(path(), rows, sequence.q_size());
  RunAttention(compute, shape, sequence.pool(), 1, slices, sequence.q_size(), out.Rows(rows),
               backend());
  const auto got = RowsOf(path(), out.Rows(rows));
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [begin, end] = parts[i];
    ASSERT_EQ(
        std::memcmp(&got[slices[i].out_row * sequence.q_size()], &want[begin * sequence.q_size()],
                    (end - begin) * sequence.q_size() * sizeof(float)),
        0)
        << begin;
  }
}

// Slots past a row's position hold NaN or infinity: a later token of the slice, or none at all.
TEST_P(AttentionTest, WhatARowMayNotSeeCannotReachIt) {
  std::mt19937 rng(5);
  const AttentionShape shape{6, 2, 32};
  const int64_t tokens = 300;
  Sequence sequence(GetParam(), rng, shape, tokens, 64);
  const auto want = sequence.Run(2, 0, tokens);
  for (int64_t limit : {1, 2, 17, 63, 64, 65, 130, 199, 255, 256, 257, 287, 288, 299}) {
    sequence.Place(64, limit);
    const auto alone = sequence.Run(2, 0, limit);
    const auto among = sequence.Run(2, 0, tokens);
    const auto last = sequence.Run(2, limit - 1, limit);
    ASSERT_TRUE(SameBits(alone, want.data())) << limit;
    ASSERT_TRUE(SameBits(last, &want[(limit - 1) * sequence.q_size()])) << limit;
    ASSERT_EQ(std::memcmp(among.data(), want.data(), alone.size() * sizeof(float)), 0) << limit;
  }
}

// Values that are no numbers reach the rows that see them, and their own dimension, alike whatever
// rows are beside.
TEST_P(AttentionTest, ValuesThatAreInfiniteReachWhoSeesThem) {
  std::mt19937 rng(10);
  const AttentionShape shape{6, 2, 32};
  const int64_t tokens = 200;
  Sequence sequence(GetParam(), rng, shape, tokens, 64);
  sequence.ScaleQueries(0.2f);
  const auto finite = sequence.Run(2, 0, tokens);
  sequence.SetValue(70, 3, INFINITY);
  sequence.SetValue(101, 3, -INFINITY);
  sequence.SetValue(130, 30, NAN);
  const auto got = sequence.Run(2, 0, tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    SCOPED_TRACE(t);
    const auto alone = sequence.Run(1, t, t + 1);
    for (int i = 0; i < sequence.q_size(); ++i) {
      const float value = got[t * sequence.q_size() + i];
      const int dim = i < sequence.q_size() / 2 ? i % shape.head_dim : -1;  // of KV head 0
      if ((dim == 3 && t >= 101) || (dim == 30 && t >= 130)) {
        ASSERT_TRUE(std::isnan(value) && std::isnan(alone[i])) << i;
        continue;
      }
      const float want = finite[t * sequence.q_size() + i];
      ASSERT_EQ(value, dim == 3 && t >= 70 ? INFINITY : want) << i;
      ASSERT_EQ(alone[i], value) << i;
    }
  }
}

// Which includes NaNs in the pages, as in all of these tests.
TEST_P(AttentionTest, WhatIsComputedAndMaskedChangesNothing) {
  std::mt19937 rng(8);
  const AttentionShape shape{6, 2, 32};
  const int64_t tokens = kAttentionPartial + 300;
  Sequence sequence(GetParam(), rng, shape, tokens, 64);
  OneObject one(sequence, shape, tokens, path(), backend());
  for (const auto& [begin, end] : {std::pair(0l, 200l), {100l, 101l}, {900l, tokens}}) {
    const auto want = sequence.Run(2, begin, end);
    for (const int64_t keys : {end, end + 1, 1024l, 1100l, tokens}) {
      AttentionSlice slice = sequence.Slice(begin, end);
      slice.dense_keys = keys;
      ASSERT_TRUE(SameBits(one.Run(slice, end - begin), want.data()))
          << begin << ".." << end << " of " << keys;
    }
  }
}

// Behind the pages that cover what is masked lies the number of none.
TEST_P(AttentionTest, WhatIsMaskedNeedsNoPagesBeyondIt) {
  std::mt19937 rng(18);
  const AttentionShape shape{4, 2, 32};
  const int64_t tokens = 560;  // ends within a block
  Sequence sequence(GetParam(), rng, shape, tokens, 16);
  OneObject one(sequence, shape, tokens, path(), backend());
  AttentionSlice slice = sequence.Slice(20, 40);
  std::vector<PageId> pages(slice.pages.begin(), slice.pages.end());
  pages.push_back(kNoPage);
  slice.pages = std::span(pages).first(pages.size() - 1);
  slice.dense_keys = tokens;
  EXPECT_TRUE(SameBits(one.Run(slice, 20), sequence.Run(2, 20, 40).data()));
}

// What a longer sequence has left in the partial sums reaches no shorter one: 1,023 ends with its
// first partial.
TEST_P(AttentionTest, OneObjectDecodesAsFreshOnesDo) {
  std::mt19937 rng(11);
  for (const AttentionShape& shape : {AttentionShape{6, 2, 32}, AttentionShape{8, 1, 64}}) {
    const int64_t tokens = 2 * kAttentionPartial + 100;
    Sequence sequence(GetParam(), rng, shape, tokens, 64);
    OneObject one(sequence, shape, tokens, path(), backend());
    for (const int64_t token : {1500l, 1023l, 2100l, 2047l, 63l, 1024l}) {
      const auto want = sequence.Run(2, token, token + 1);
      ASSERT_TRUE(SameBits(one.Run(sequence.Slice(token, token + 1), 1), want.data()))
          << "decode " << token;
    }
  }
}

// Merges are planned while tiles alone would leave more than a fifth of a device idle.
TEST_P(AttentionTest, TilesAreSplitWhileADeviceWouldBeIdle) {
  if (!OnCuda(path())) GTEST_SKIP() << "the CPU has no tiles";
  std::mt19937 rng(14);
  const AttentionShape shape{4, 4, 64};
  const int64_t rows = 1 << 14;
  ThreadPool workers(2);
  const Compute compute(workers, path());
  const int multiprocessors = compute.cuda()->multiprocessors();
  const Sequence sequence(GetParam(), rng, shape, rows, 128);
  const auto attention =
      Attention::Create(compute, shape, sequence.pool(), {rows, rows}, backend());
  const auto plan = attention->NewPlan();
  struct Launch {
    uint64_t tasks, merges;
  };
  const auto launch_of = [&](int64_t of_rows) {
    const AttentionSlice slice = sequence.Slice(rows - of_rows, rows);
    plan->Set(std::span(&slice, 1));
    return Launch{plan->launches()[0], plan->launches()[1]};
  };
  const int64_t tile_rows = backend() == AttentionBackend::kMma ? 64 : 128;
  const int64_t fives = 5 * shape.kv_heads, enough = (4 * multiprocessors + fives - 1) / fives;
  const Launch split = launch_of((enough - 1) * tile_rows);
  EXPECT_GE(split.merges, static_cast<uint64_t>(enough - 1));
  EXPECT_GT(split.tasks, split.merges);
  EXPECT_EQ(launch_of(enough * tile_rows).merges, 0u);
}

// Random shapes, chunks, slices and strides; what lies between the rows is left alone.
TEST_P(AttentionTest, RandomShapesAgreeWithTheFormula) {
  std::mt19937 rng(7);
  const double tolerance = Bf16Products(path()) ? 0.03 : 2e-5;
  for (int round = 0; round < 25; ++round) {
    const int kv_heads = 1 + rng() % 4, group = 1 + rng() % 9;
    AttentionShape shape{.heads = kv_heads * group,
                         .kv_heads = kv_heads,
                         .head_dim = 16 * static_cast<int>(1 + rng() % 8)};
    if (rng() % 3 == 0) shape.alibi_slopes = RandomFloats(rng, shape.heads, 0.2f);
    const int64_t tokens = 1 + rng() % 260, begin = rng() % tokens, rows = tokens - begin;
    SCOPED_TRACE(fmt::format("{} heads, {} KV heads of {}, [{}, {})", shape.heads, kv_heads,
                             shape.head_dim, begin, tokens));
    Sequence sequence(GetParam(), rng, shape, tokens, 16 * static_cast<int>(1 + rng() % 9));
    sequence.ScaleQueries(1 / std::sqrt(static_cast<float>(shape.head_dim)));
    const int64_t size = sequence.q_size(), stride = size + 2 * (rng() % 20);
    std::vector<float> q(rows * stride, NAN);
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(&sequence.q()[(begin + r) * size], size, &q[r * stride]);
    }
    ThreadPool workers(1 + rng() % 3);
    const Compute compute(workers, path());
    ActivationBuffer out(path(), rows + 2, size);
    const Activations all = out.Rows(rows + 2);
    SetActivations(path(), std::vector<float>((rows + 2) * size, 3.0f), all);
    AttentionSlice slice = sequence.Slice(begin, tokens, /*out_row=*/1);
    const Buffer kernel_q = ToKernels(path(), q);
    slice.q = kernel_q.as<float>();
    RunAttention(compute, shape, sequence.pool(), 1, std::span(&slice, 1), stride, all, backend());
    const auto got = RowsOf(path(), all);
    for (int64_t i = 0; i < size; ++i) {
      ASSERT_EQ(got[i], 3.0f);
      ASSERT_EQ(got[(rows + 1) * size + i], 3.0f);
    }
    for (int64_t r = 0; r < rows; r += 1 + rows / 7) {
      for (int h = 0; h < shape.heads; ++h) {
        const auto want = sequence.Reference(begin + r, h);
        for (int d = 0; d < shape.head_dim; ++d) {
          ASSERT_NEAR(got[(1 + r) * size + h * shape.head_dim + d], want[d], tolerance)
              << "row " << r << " head " << h << " dim " << d;
        }
      }
    }
  }
}

TEST_P(AttentionTest, ExtremeScoresPickTheirKey) {
  std::mt19937 rng(6);
  const AttentionShape shape{1, 1, 16};
  Sequence sequence(GetParam(), rng, shape, 300, 64);
  sequence.ScaleQueries(1e4f);
  const auto out = sequence.Run(2, 0, 300);
  for (int64_t t : {0, 1, 63, 64, 299}) {
    const auto want = sequence.Reference(t, 0);
    for (int d = 0; d < 16; ++d) ASSERT_NEAR(out[t * 16 + d], want[d], 0.02);
  }
}

TEST(AttentionBackendTest, WhatCannotBeIsRefused) {
  for (const NumericPath path : {NumericPath::kF32, NumericPath::kBf16Tensor}) {
    EXPECT_TRUE(CheckAttentionBackend(AttentionBackend::kAuto, path, kAttentionHeadDimMax));
    EXPECT_TRUE(CheckAttentionBackend(AttentionBackend::kMma, path, kAttentionHeadDimMax));
  }
  EXPECT_TRUE(CheckAttentionBackend(AttentionBackend::kWgmma, NumericPath::kF32, 256));
  // By any device, and where there is none.
  const Status refused =
      CheckAttentionBackend(AttentionBackend::kWgmma, NumericPath::kBf16Tensor, 256);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
}

KVCAKE_EVERY_WAY(AttentionTest);

}  // namespace
}  // namespace kvcake
