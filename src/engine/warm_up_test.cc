#include "engine/warm_up.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "base/check.h"
#include "kv/page_pool.h"

namespace kvcake {
namespace {

constexpr KvLayout kWarmLayout{.layers = 1, .kv_heads = 1, .head_dim = 16, .chunk_tokens = 128};
// SmolLM2 135M on one thread.
constexpr double kC0 = 0.01, kB = 1e-3, kA = 2.5e-7, kRatio = 1.6e-4;

double TrueSeconds(double prefix, double tokens) {
  return kC0 + kB * tokens + kA * tokens * (2 * prefix + tokens);
}

// Passes as long as a machine's that others disturb: none is shorter than it should be, and the
// first is three times as long.
class NoisyModel : public Model {
 public:
  NoisyModel(FakeClock& clock, uint32_t seed, int positions, double slower = 1)
      : clock_(clock), rng_(seed), positions_(positions), slower_(slower) {}

  const KvLayout& layout() const override { return kWarmLayout; }
  const KvIdentity& identity() const override { return identity_; }
  NumericPath numeric_path() const override { return NumericPath::kF32; }
  int vocab_size() const override { return 1; }
  int max_positions() const override { return positions_; }
  int max_batch_tokens() const override { return 512; }
  Result<std::span<const float>> Forward(std::span<const Slice> batch) override {
    const Slice& slice = batch[0];
    const int end = slice.start + static_cast<int>(slice.tokens.size());
    CHECK(end <= positions_ && static_cast<int>(slice.pages.size()) * 128 >= end);
    const double noise = passes++ == 0 ? 3 : std::uniform_real_distribution(1.0, 1.1)(rng_);
    clock_.Advance(Seconds(slower_ * noise *
                           TrueSeconds(slice.start, static_cast<double>(end - slice.start))));
    return std::span<const float>();
  }
  int passes = 0;

 private:
  FakeClock& clock_;
  std::mt19937 rng_;
  const int positions_;
  const double slower_;
  const KvIdentity identity_;
};

class WarmUpTest : public testing::Test {
 protected:
  static std::unique_ptr<PagePool> Pool(int pages) {
    auto pool = PagePool::Create(kWarmLayout, pages * kWarmLayout.page_bytes());
    CHECK(pool.has_value());
    return std::move(*pool);
  }

  FakeClock clock_;
  const std::unique_ptr<PagePool> pool_ = Pool(40);
};

TEST_F(WarmUpTest, FarPassesTellAttentionFromNoise) {
  double worst_near = 0;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    NoisyModel model(clock_, seed, 8192);
    ComputeCost cost({.attention_ratio = kRatio});
    // A long prompt's first half against its second: what a partition hangs on.
    const auto off = [&] {
      const ComputeFit fit = cost.fit();
      const double expected = TrueSeconds(2048, 2048) / TrueSeconds(0, 2048);
      return std::abs(fit.SecondsFor(2048, 2048) / fit.SecondsFor(0, 2048) / expected - 1);
    };
    ASSERT_TRUE(WarmUp(model, *pool_, cost, clock_, {.max = Seconds(0.2)}));
    worst_near = std::max(worst_near, off());
    ASSERT_TRUE(WarmUpFar(model, *pool_, cost, clock_));
    EXPECT_LE(off(), 0.15) << "seed " << seed;
  }
  EXPECT_GT(worst_near, 0.3) << "or the far ones are not needed";
}

// The first of its length is cold, and would be taken for how the machine is.
TEST_F(WarmUpTest, LengthsDoubleAfterTheFirstHasHadTwo) {
  NoisyModel model(clock_, 1, 8192);
  ComputeCost cost;
  ASSERT_TRUE(WarmUp(model, *pool_, cost, clock_, {.slice_tokens = 256, .max = Seconds(60)}));
  EXPECT_EQ(model.passes, 6) << "16, 16, 32, 64, 128, 256";
  EXPECT_EQ(cost.fit().samples, 6);
}

TEST_F(WarmUpTest, NoPassBeginsWhenTimeIsUp) {
  NoisyModel slow(clock_, 1, 8192, /*slower=*/100);
  ComputeCost cost;
  ASSERT_TRUE(WarmUp(slow, *pool_, cost, clock_, {.max = Seconds(0.2)}));
  EXPECT_EQ(slow.passes, 1);
}

TEST_F(WarmUpTest, FarPassesAreForWhoKnowsLittle) {
  NoisyModel model(clock_, 1, 8192);
  ComputeCost cost;
  for (int i = 0; i < 20; ++i) cost.Add(i * 512, 512, Seconds(TrueSeconds(i * 512, 512)));
  ASSERT_TRUE(WarmUpFar(model, *pool_, cost, clock_));
  EXPECT_EQ(model.passes, 0);
  ASSERT_TRUE(WarmUp(model, *pool_, cost, clock_, {}));
  EXPECT_EQ(model.passes, 1) << "to touch memory";
  ASSERT_TRUE(WarmUp(model, *pool_, cost, clock_, {}));
  EXPECT_EQ(cost.fit().samples, 20);
}

TEST_F(WarmUpTest, ASlowModelHasOneFarPass) {
  NoisyModel model(clock_, 1, 8192, /*slower=*/100);
  ComputeCost cost;
  ASSERT_TRUE(WarmUpFar(model, *pool_, cost, clock_));
  EXPECT_EQ(model.passes, 1);
  EXPECT_EQ(cost.fit().samples, 1);
  // A second pass is not begun where it would end after the time that there is.
  NoisyModel slower(clock_, 1, 8192, /*slower=*/3);
  ComputeCost other;
  const TimePoint began = clock_.Now();
  ASSERT_TRUE(WarmUpFar(slower, *pool_, other, clock_));
  EXPECT_EQ(slower.passes, 1);
  EXPECT_EQ(other.fit().samples, 1);
  EXPECT_LT(clock_.Now() - began, Seconds(1));
}

TEST_F(WarmUpTest, ShortContextsAndSmallPoolsAreNoError) {
  ComputeCost cost;
  NoisyModel shorter(clock_, 1, 1024);
  ASSERT_TRUE(WarmUpFar(shorter, *pool_, cost, clock_));
  EXPECT_EQ(shorter.passes, 4) << "as far as it goes";
  NoisyModel shortest(clock_, 1, 64);
  ComputeCost nothing;
  ASSERT_TRUE(WarmUpFar(shortest, *pool_, nothing, clock_));
  EXPECT_EQ(shortest.passes, 0);
  const auto small = Pool(4);
  NoisyModel model(clock_, 1, 8192);
  ASSERT_TRUE(WarmUpFar(model, *small, nothing, clock_));
  EXPECT_FALSE(nothing.fit().known());
}

}  // namespace
}  // namespace kvcake
