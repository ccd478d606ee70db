#include "store/throttled_tier.h"

#include <gtest/gtest.h>

#include <thread>

#include "store/faulty_tier_testing.h"
#include "store/memory_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

// A rate at which nothing arrives while a test lasts.
constexpr double kStandstill = 1e-3;

class ThrottledTierTest : public testing::Test {
 protected:
  void Open(ThrottledTierOptions options, FaultyTierOptions faults = {}) {
    auto memory = std::make_unique<MemoryTier>(MemoryTierOptions{.layout = layout_});
    for (size_t i = 0; i < chain_.size(); ++i) {
      ASSERT_TRUE(PutChunk(*memory, layout_, chain_[i], ParentOf(chain_, i)));
    }
    tier_ = std::make_unique<ThrottledTier>(std::make_unique<FaultyTier>(std::move(memory), faults),
                                            options);
  }
  size_t Start(Reads& reads, size_t i) {
    return reads.Start(*tier_, layout_, chain_[i], ParentOf(chain_, i));
  }
  ErrorCode CodeOf(const ReadResult& result) {
    EXPECT_FALSE(result.status);
    return result.status ? ErrorCode::kIo : result.status.error().code;
  }

  const KvLayout layout_ = SmallLayout();
  const double bytes_ = static_cast<double>(layout_.page_bytes());
  const std::vector<ChunkKey> chain_ = Chain(10);
  std::unique_ptr<ThrottledTier> tier_;
};

TEST_F(ThrottledTierTest, BytesTakeTheirTimeInOrder) {
  const double rate = 2e6;
  Open({.rate_bytes_per_s = rate});
  Reads reads;
  const TimePoint start = Clock::Real().Now();
  for (size_t i = 0; i < chain_.size(); ++i) Start(reads, i);
  for (size_t i = 0; i < chain_.size(); ++i) {
    ASSERT_TRUE(reads.Wait(i).status);
    EXPECT_GE((Clock::Real().Now() - start).count(), static_cast<double>(i + 1) * bytes_ / rate);
    EXPECT_TRUE(HoldsChunk(chain_[i], reads.landing(i)));
  }
  const std::vector<size_t> in_order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(reads.order(), in_order);
  EXPECT_DOUBLE_EQ(tier_->Link().charged_bytes, 10 * bytes_);
  EXPECT_EQ(tier_->Link().reads_waiting, 0u);
}

TEST_F(ThrottledTierTest, LateInnerReadsKeepTheOrderOfTheLink) {
  Open({.rate_bytes_per_s = 1e9}, {.read_delay = 0.7, .delay_max = Seconds(0.005)});
  Reads reads;
  for (size_t i = 0; i < chain_.size(); ++i) Start(reads, i);
  for (size_t i = 0; i < chain_.size(); ++i) ASSERT_TRUE(reads.Wait(i).status);
  const std::vector<size_t> in_order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(reads.order(), in_order);
}

TEST_F(ThrottledTierTest, LatencyComesOnTop) {
  const double rate = 2e6;
  const Seconds latency(0.02);
  Open({.rate_bytes_per_s = rate, .latency = latency});
  Reads reads;
  const TimePoint start = Clock::Real().Now();
  Start(reads, 0);
  Start(reads, 1);
  ASSERT_TRUE(reads.Wait(0).status);
  EXPECT_GE((Clock::Real().Now() - start).count(), latency.count() + bytes_ / rate);
  ASSERT_TRUE(reads.Wait(1).status);
  EXPECT_GE((Clock::Real().Now() - start).count(), latency.count() + 2 * bytes_ / rate);
}

TEST_F(ThrottledTierTest, ACancelledReadIsChargedWhatHadPassed) {
  const double rate = bytes_ / 100;  // a chunk takes 100 s
  Open({.rate_bytes_per_s = rate});
  Reads reads;
  const TimePoint start = Clock::Real().Now();
  for (size_t i = 0; i < 3; ++i) Start(reads, i);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  tier_->Cancel(reads.id(1));  // still waiting for the link: free
  EXPECT_EQ(CodeOf(reads.Wait(1)), ErrorCode::kCancelled);
  EXPECT_EQ(tier_->Link().charged_bytes, 0);
  const TimePoint before = Clock::Real().Now();
  tier_->Cancel(reads.id(0));
  EXPECT_EQ(CodeOf(reads.Wait(0)), ErrorCode::kCancelled);
  const double elapsed = (Clock::Real().Now() - start).count();
  const double charged = tier_->Link().charged_bytes;
  EXPECT_GT(charged, 0);
  EXPECT_GE(charged, rate * 0.019);
  EXPECT_LE(charged, rate * elapsed);
  EXPECT_EQ(reads.answers(2), 0);
  EXPECT_EQ(tier_->Link().reads_waiting, 1u);
  // The next one starts where the cancelled one ended, with nothing of its own passed yet.
  tier_->SetRate(bytes_ / 0.01);
  ASSERT_TRUE(reads.Wait(2).status);
  EXPECT_GE((Clock::Real().Now() - before).count(), 0.009);
  EXPECT_NEAR(tier_->Link().charged_bytes, charged + bytes_, 1e-6 * bytes_);
}

TEST_F(ThrottledTierTest, ACorruptReadIsChargedWhatHadPassed) {
  const double rate = bytes_ / 100;
  const Seconds inner(0.02);
  auto memory =
      std::make_unique<MemoryTier>(MemoryTierOptions{.layout = layout_, .read_latency = inner});
  ASSERT_TRUE(PutChunk(*memory, layout_, chain_[1], chain_[0]));
  tier_ = std::make_unique<ThrottledTier>(std::move(memory),
                                          ThrottledTierOptions{.rate_bytes_per_s = rate});
  Reads reads;
  const TimePoint start = Clock::Real().Now();
  const size_t read = reads.Start(*tier_, layout_, chain_[1], Root());  // another parent
  EXPECT_EQ(CodeOf(reads.Wait(read)), ErrorCode::kCorrupt);
  const double elapsed = (Clock::Real().Now() - start).count();
  EXPECT_GE(tier_->Link().charged_bytes, rate * inner.count() * 0.999);
  EXPECT_LE(tier_->Link().charged_bytes, rate * elapsed);
}

TEST_F(ThrottledTierTest, TheRateCanChangeWhileAReadIsOnTheLink) {
  Open({.rate_bytes_per_s = kStandstill});
  Reads reads;
  Start(reads, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(reads.answers(0), 0);
  const TimePoint start = Clock::Real().Now();
  tier_->SetRate(2e6);
  EXPECT_EQ(tier_->rate(), 2e6);
  ASSERT_TRUE(reads.Wait(0).status);
  // All but a thousandth of a byte had still to come.
  EXPECT_GE((Clock::Real().Now() - start).count(), (bytes_ - 1) / 2e6);
}

TEST_F(ThrottledTierTest, TheLinkFollowsItsTraceFromTheFirstRead) {
  const double slow = bytes_ / 10, fast = 2e6;  // a chunk takes 10 s, or next to nothing
  Open({.rate_bytes_per_s = slow,
        .trace = {{.at = Seconds(0.03), .rate_bytes_per_s = fast},
                  {.at = Seconds(0.06), .rate_bytes_per_s = fast, .latency = Seconds(0.05)}}});
  Reads reads;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // counts for nothing
  const TimePoint start = Clock::Real().Now();
  Start(reads, 0);
  ASSERT_TRUE(reads.Wait(0).status);
  const double first = 0.03 + (bytes_ - 0.03 * slow) / fast;
  EXPECT_GE((Clock::Real().Now() - start).count(), first);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  const TimePoint second = Clock::Real().Now();
  Start(reads, 1);
  ASSERT_TRUE(reads.Wait(1).status);
  EXPECT_GE((Clock::Real().Now() - second).count(), 0.05 + bytes_ / fast);
  EXPECT_EQ(tier_->rate(), fast);
}

TEST_F(ThrottledTierTest, AMissDoesNotHoldTheLink) {
  Open({.rate_bytes_per_s = kStandstill});
  Reads reads;
  Start(reads, 0);
  const size_t missing = reads.Start(*tier_, layout_, Chain(1, 7)[0], Root());
  EXPECT_EQ(CodeOf(reads.Wait(missing)), ErrorCode::kNotFound);
  EXPECT_EQ(reads.answers(0), 0);
  EXPECT_EQ(tier_->Link().charged_bytes, 0);
  tier_->Cancel(reads.id(0));
}

TEST_F(ThrottledTierTest, AnIdleLinkLetsABurstThrough) {
  Open({.rate_bytes_per_s = kStandstill, .burst_bytes = layout_.page_bytes()});
  Reads reads;
  Start(reads, 0);
  ASSERT_TRUE(reads.Wait(0).status) << "the bucket was full";
  Start(reads, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(reads.answers(1), 0) << "the bucket was empty";
  tier_->Cancel(reads.id(1));
}

TEST_F(ThrottledTierTest, AStalledInnerReadCanBeCancelled) {
  Open({.rate_bytes_per_s = 1e9}, {.read_stall = 1});
  Reads reads;
  Start(reads, 0);
  Start(reads, 1);
  tier_->Cancel(reads.id(0));
  EXPECT_EQ(CodeOf(reads.Wait(0)), ErrorCode::kCancelled);
  EXPECT_EQ(reads.answers(1), 0);
  tier_.reset();
  EXPECT_EQ(CodeOf(reads.Wait(1)), ErrorCode::kCancelled);
}

TEST_F(ThrottledTierTest, RandomTrafficIsAnsweredOnceAndNeverFasterThanTheLink) {
  const double rate = 20e6;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Open({.rate_bytes_per_s = rate, .latency = Seconds(0.0002)},
         {.seed = seed, .read_error = 0.1, .read_missing = 0.1, .read_delay = 0.3});
    std::mt19937_64 random(seed);
    Reads reads;
    const TimePoint start = Clock::Real().Now();
    for (size_t n = 0; n < 100; ++n) {
      Start(reads, random() % chain_.size());
      if (random() % 5 == 0) tier_->Cancel(reads.id(random() % (n + 1)));
    }
    double delivered = 0;
    for (size_t n = 0; n < 100; ++n) {
      if (reads.Wait(n).status) delivered += bytes_;
      EXPECT_EQ(reads.answers(n), 1);
    }
    const double elapsed = (Clock::Real().Now() - start).count();
    const double charged = tier_->Link().charged_bytes;
    EXPECT_GE(charged, delivered);
    EXPECT_LE(charged, elapsed * rate);
  }
}

}  // namespace
}  // namespace kvcake
