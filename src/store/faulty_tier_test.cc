#include <gtest/gtest.h>

#include "store/faulty_tier_testing.h"
#include "store/memory_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class FaultyTierTest : public testing::Test {
 protected:
  std::unique_ptr<FaultyTier> Make(FaultyTierOptions options) {
    auto memory = std::make_unique<MemoryTier>(MemoryTierOptions{.layout = layout_});
    for (size_t i = 0; i < chain_.size(); ++i) {
      CHECK(PutChunk(*memory, layout_, chain_[i], ParentOf(chain_, i)));
    }
    return std::make_unique<FaultyTier>(std::move(memory), options);
  }
  std::optional<ErrorCode> Read(Tier& tier, size_t i) {
    return ReadBack(tier, layout_, chain_[i], ParentOf(chain_, i));
  }

  const KvLayout layout_ = SmallLayout();
  const std::vector<ChunkKey> chain_ = Chain(30);
};

TEST_F(FaultyTierTest, EachFaultIsWhatItSays) {
  auto error = Make({.read_error = 1});
  EXPECT_EQ(Read(*error, 0), ErrorCode::kIo);
  EXPECT_EQ(error->Stats().reads_failed, 1u);
  EXPECT_EQ(error->Stats().reads, 0u);
  auto missing = Make({.read_missing = 1});
  EXPECT_TRUE(missing->Residency(chain_)[0]);
  EXPECT_EQ(Read(*missing, 0), ErrorCode::kNotFound);
  auto corrupt = Make({.read_corrupt = 1});
  EXPECT_EQ(Read(*corrupt, 0), ErrorCode::kCorrupt);
  EXPECT_FALSE(corrupt->Residency(chain_)[0]);
  for (const FaultyTierOptions& options :
       {FaultyTierOptions{.read_flip = 1}, FaultyTierOptions{.read_short = 1}}) {
    auto spoilt = Make(options);
    EXPECT_EQ(Read(*spoilt, 0), ErrorCode::kCorrupt);
    EXPECT_FALSE(spoilt->Residency(chain_)[0]);
    EXPECT_EQ(spoilt->Stats().reads_failed, 1u);
  }
  auto write = Make({.write_error = 1});
  EXPECT_EQ(PutChunk(*write, layout_, Chain(1, 5)[0], Root()).error().code, ErrorCode::kIo);
  auto lost = Make({.write_lost = 1});
  EXPECT_TRUE(PutChunk(*lost, layout_, Chain(1, 5)[0], Root()));
  EXPECT_FALSE(lost->Residency(Chain(1, 5))[0]);
}

TEST_F(FaultyTierTest, AFailedReadLeavesNoRightBytesToBeUsedByMistake) {
  auto tier =
      Make({.read_error = 0.25, .read_corrupt = 0.25, .read_flip = 0.25, .read_short = 0.25});
  for (size_t i = 0; i < chain_.size(); ++i) {
    Reads reads;
    reads.Start(*tier, layout_, chain_[i], ParentOf(chain_, i));
    EXPECT_FALSE(reads.Wait(0).status);
    EXPECT_FALSE(HoldsChunk(chain_[i], reads.landing(0)));
  }
}

TEST_F(FaultyTierTest, TheSameSeedGivesTheSameFaults) {
  const auto run = [&](uint64_t seed) {
    auto tier = Make({.seed = seed, .read_error = 0.3, .read_missing = 0.3});
    std::vector<std::optional<ErrorCode>> codes;
    for (size_t i = 0; i < chain_.size(); ++i) codes.push_back(Read(*tier, i));
    EXPECT_GT(tier->faults(), 0u);
    return codes;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST_F(FaultyTierTest, AStalledReadEndsByCancelReleaseOrDestruction) {
  auto tier = Make({.read_stall = 1});
  Reads reads;
  for (size_t i = 0; i < 3; ++i) reads.Start(*tier, layout_, chain_[i], ParentOf(chain_, i));
  tier->Cancel(reads.id(0));
  EXPECT_EQ(reads.Wait(0).status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(reads.answers(1) + reads.answers(2), 0);
  tier->ReleaseStalled();
  EXPECT_EQ(reads.Wait(1).status.error().code, ErrorCode::kIo);
  EXPECT_EQ(reads.Wait(2).status.error().code, ErrorCode::kIo);
  reads.Start(*tier, layout_, chain_[3], chain_[2]);
  tier.reset();
  EXPECT_EQ(reads.Wait(3).status.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace kvcake
