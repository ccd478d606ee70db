// Attention of single tokens: on CUDA kernels of their own compute it, to the bits of others.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "ops/attention_testing.h"

namespace kvcake {
namespace {

class AttentionDecodeTest : public AttentionTest {};

// Heads that decode takes apart otherwise: groups of more than 8 and 16, every padded size of
// heads, and contexts about blocks and partials. What prefill has for these rows is checked by
// others.
TEST_P(AttentionDecodeTest, EveryShapeDecodesToTheBitsOfPrefill) {
  std::mt19937 rng(12);
  for (const AttentionShape& shape :
       {AttentionShape{12, 1, 128}, AttentionShape{17, 1, 64}, AttentionShape{32, 2, 48},
        AttentionShape{40, 1, 96}, AttentionShape{96, 1, 16}, AttentionShape{2, 1, 256},
        AttentionShape{9, 1, 240}, AttentionShape{16, 1, 32}, AttentionShape{3, 3, 64},
        AttentionShape{
            12,
            1,
            112,
            {0.5f, 0.1f, 0.02f, 1e-3f, 0.3f, 0.2f, 0.7f, 0.9f, 1.0f, 0.05f, 0.03f, 0.4f}}}) {
    if (!CheckAttentionBackend(backend(), path(), shape.head_dim)) continue;
    SCOPED_TRACE(
        fmt::format("groups of {} heads of {}", shape.heads / shape.kv_heads, shape.head_dim));
    const int64_t tokens = kAttentionPartial + 2;
    Sequence sequence(GetParam(), rng, shape, tokens, 48);
    sequence.ScaleQueries(0.5f);
    for (const int64_t token :
         {0l, 1l, 62l, 63l, 64l, 200l, 255l, 256l, 287l, 1022l, 1023l, 1024l, 1025l}) {
      // With the row before it or behind, it is no single one.
      const int64_t begin = std::max<int64_t>(token - 1, 0);
      const auto want = sequence.Run(2, begin, begin + 2);
      ASSERT_TRUE(
          SameBits(sequence.Run(2, token, token + 1), &want[(token - begin) * sequence.q_size()]))
          << "decode " << token;
    }
  }
}

// However many there are, and again: few are spread over a device otherwise than many.
TEST_P(AttentionDecodeTest, EveryNumberOfSequencesDecodesToTheSameBits) {
  std::mt19937 rng(13);
  const std::vector<int64_t> contexts = {5000, 1, 63, 64, 1023, 1024, 1025, 2048, 300, 2049};
  for (const int head_dim : {32, 128, 256}) {
    const AttentionShape shape{20, 2, head_dim};
    if (!CheckAttentionBackend(backend(), path(), shape.head_dim)) continue;
    Sequence sequence(GetParam(), rng, shape, contexts[0], 64);
    sequence.ScaleQueries(0.5f);
    std::vector<std::vector<float>> wants;
    for (const int64_t context : contexts) {
      const int64_t begin = std::max<int64_t>(context - 2, 0);
      auto want = sequence.Run(2, begin, begin + 2);
      want.erase(want.begin(), want.begin() + (context - 1 - begin) * sequence.q_size());
      want.resize(sequence.q_size());
      wants.push_back(std::move(want));
    }
    ThreadPool workers(2);
    const Compute compute(workers, path());
    const int64_t most = 70;
    const auto attention =
        Attention::Create(compute, shape, sequence.pool(), {most, most}, backend());
    const auto plan = attention->NewPlan();
    for (const int64_t rows : {int64_t{1}, int64_t{10}, int64_t{30}, most}) {
      ActivationBuffer out(path(), rows, sequence.q_size());
      std::vector<AttentionSlice> slices;
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t context = contexts[i % std::ssize(contexts)];
        slices.push_back(sequence.Slice(context - 1, context, i));
      }
      for (int again = 0; again < 2; ++again) {
        plan->Set(slices);
        attention->Run(*plan, 1, sequence.q_size(), out.Rows(rows));
        const auto got = RowsOf(path(), out.Rows(rows));
        for (int64_t i = 0; i < rows; ++i) {
          ASSERT_TRUE(SameBits(wants[i % std::ssize(contexts)], &got[i * sequence.q_size()]))
              << i << " of " << rows << " heads of " << head_dim;
        }
      }
    }
  }
}

// The CPU keeps the sums of so many rows apart at once: those beyond are computed otherwise.
TEST_P(AttentionDecodeTest, RowsBeyondTheRoomForSumsGetTheSameBits) {
  if (OnCuda(path())) GTEST_SKIP() << "a device's plan has room for the rows of its limits";
  std::mt19937 rng(15);
  const AttentionShape shape{96, 2, 16};
  const int64_t tokens = 3, rows = 2400;  // of 18 KiB of sums each
  const Sequence sequence(GetParam(), rng, shape, tokens, 16);
  const auto want = sequence.Run(2, 0, tokens);
  ThreadPool workers(2);
  const Compute compute(workers, path());
  ActivationBuffer out(path(), rows, sequence.q_size());
  std::vector<AttentionSlice> slices;
  for (int64_t i = 0; i < rows; ++i) {
    slices.push_back(sequence.Slice(i % tokens, i % tokens + 1, i));
  }
  RunAttention(compute, shape, sequence.pool(), 1, slices, sequence.q_size(), out.Rows(rows));
  const auto got = RowsOf(path(), out.Rows(rows));
  for (int64_t i = 0; i < rows; ++i) {
    ASSERT_EQ(std::memcmp(&got[i * sequence.q_size()], &want[i % tokens * sequence.q_size()],
                          sequence.q_size() * sizeof(float)),
              0)
        << i;
  }
}

// On the CPU a task has some of the KV heads, and the last one what is left: of five, two, two and
// one.
TEST_P(AttentionDecodeTest, HeadsThatTasksCannotShareEvenlyGetTheSameBits) {
  std::mt19937 rng(17);
  const AttentionShape shape{10, 5, 16};
  const int64_t rows = 10;
  const Sequence sequence(GetParam(), rng, shape, rows, 16);
  const auto want = sequence.Run(1, 0, rows);
  ThreadPool workers(4);
  const Compute compute(workers, path());
  ActivationBuffer out(path(), rows, sequence.q_size());
  std::vector<AttentionSlice> slices;
  for (int64_t i = 0; i < rows; ++i) slices.push_back(sequence.Slice(i, i + 1, i));
  RunAttention(compute, shape, sequence.pool(), 1, slices, sequence.q_size(), out.Rows(rows),
               backend());
  EXPECT_TRUE(SameBits(RowsOf(path(), out.Rows(rows)), want.data()));
}

// What a tile keeps of its rows lies apart, also where all of it is as large as it can be.
TEST_P(AttentionDecodeTest, TheLargestTileOfTheLargestHeadsGivesTheBitsOfItsRowsAlone) {
  std::mt19937 rng(16);
  const AttentionShape shape{
      8, 1, kAttentionHeadDimMax, {0.5f, 0.1f, 0.02f, 1e-3f, 0.3f, 0.2f, 0.7f, 0.05f}};
  if (!CheckAttentionBackend(backend(), path(), shape.head_dim)) return;
  const int64_t begin = kAttentionPartial, end = begin + 12;  // 96 rows
  Sequence sequence(GetParam(), rng, shape, end, 64);
  sequence.ScaleQueries(0.1f);
  const auto got = sequence.Run(2, begin, end);
  for (int64_t token = begin; token < end; ++token) {
    const auto alone = sequence.Run(2, token, token + 1);
    ASSERT_TRUE(SameBits(alone, &got[(token - begin) * sequence.q_size()])) << token;
  }
}

// Sequences of several partials are split on CUDA while there is room for the sums of all parts,
// and else computed whole: none, some or all of them are split here, whatever came before.
TEST_P(AttentionDecodeTest, WithoutRoomForSumsSequencesAreComputedWhole) {
  std::mt19937 rng(15);
  const std::vector<int64_t> contexts = {2 * kAttentionPartial + 70, kAttentionPartial + 1,
                                         kAttentionPartial + 130, 40};
  const auto rows = std::ssize(contexts);
  for (const AttentionShape& shape :
       {AttentionShape{6, 2, 32, {0.5f, 0.1f, 0.02f, 0.004f, 0.3f, 0.01f}},
        AttentionShape{40, 2, 16}}) {
    Sequence sequence(GetParam(), rng, shape, contexts[0], 64);
    sequence.ScaleQueries(0.5f);
    std::vector<float> want;
    std::vector<AttentionSlice> slices;
    for (int64_t i = 0; i < rows; ++i) {
      const auto row = sequence.Run(2, contexts[i] - 2, contexts[i]);
      want.insert(want.end(), row.begin() + sequence.q_size(), row.end());
      slices.push_back(sequence.Slice(contexts[i] - 1, contexts[i], i));
    }
    ThreadPool workers(2);
    const Compute compute(workers, path());
    // Room for three partials and some rows of another: a row has 64 dimensions and two numbers.
    const int64_t sums_row = (64 + 2) * sizeof(float), some = 4 * shape.heads * sums_row;
    for (const int64_t sums_bytes : {int64_t{0}, some, AttentionLimits{}.sums_bytes}) {
      const auto attention =
          Attention::Create(compute, shape, sequence.pool(), {rows, rows, sums_bytes}, backend());
      const auto plan = attention->NewPlan();
      plan->Set(slices);
      compute.Wait();
      const auto launches = plan->launches();
      const ActivationBuffer out(path(), rows, sequence.q_size());
      for (int again = 0; again < 3; ++again) {
        plan->Set(slices);
        EXPECT_EQ(plan->launches(), launches);
        attention->Run(*plan, 1, sequence.q_size(), out.Rows(rows));
        ASSERT_TRUE(SameBits(RowsOf(path(), out.Rows(rows)), want.data()))
            << "groups of " << shape.heads / 2 << ", sums of " << sums_bytes << " bytes";
      }
    }
  }
}

// A plan keeps to its limits however long a context is: one of so many partials is most of what it
// may hold.
TEST_P(AttentionDecodeTest, OneLongSequenceIsWithinTheLimitsOfOne) {
  if (!OnCuda(path())) GTEST_SKIP() << "the CPU plans nothing";
  std::mt19937 rng(16);
  const AttentionShape shape{1, 1, 16};
  const int64_t partials = 40;
  const Sequence sequence(GetParam(), rng, shape, partials * kAttentionPartial, 1024);
  ThreadPool workers(2);
  const Compute compute(workers, path());
  const auto attention = Attention::Create(compute, shape, sequence.pool(), {1, 1}, backend());
  const auto plan = attention->NewPlan();
  const AttentionSlice slice = sequence.Slice(sequence.tokens() - 1, sequence.tokens());
  plan->Set(std::span(&slice, 1));
  compute.Wait();
  EXPECT_EQ(plan->launches()[3], static_cast<uint64_t>(partials));
}

KVCAKE_EVERY_WAY(AttentionDecodeTest);

}  // namespace
}  // namespace kvcake
