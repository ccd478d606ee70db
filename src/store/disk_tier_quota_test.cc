// Quotas of a directory: what outlives a process, what several processes know of each other's
// chunks, and file systems that note no owners.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/log_testing.h"
#include "io/faulty_file_system_testing.h"
#include "io/power_loss_file_system_testing.h"
#include "store/disk_tier.h"
#include "store/store_dir.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

class DiskTierQuotaTest : public testing::Test {
 protected:
  std::unique_ptr<DiskTier> Open(FileSystem& fs, uint64_t quota_chunks,
                                 std::string dir = "/store") {
    DiskTierOptions options;
    options.dir = std::move(dir);
    options.layout = layout_;
    options.root = Root();
    options.durable = true;
    options.owner_quota_bytes = quota_chunks * layout_.page_bytes();
    options.upkeep_interval = Seconds(3600);  // it finds what others wrote, some time or other
    return DiskTier::Open(options, fs).value();
  }
  void Put(Tier& tier, const std::vector<ChunkKey>& chain, size_t begin, size_t end,
           OwnerId owner) {
    for (size_t i = begin; i < end; ++i) {
      ASSERT_TRUE(PutChunk(tier, layout_, chain[i], ParentOf(chain, i), owner));
    }
  }
  // In chunks, by owner.
  std::vector<OwnedBytes> Owners(const Tier& tier) const {
    auto owners = tier.Owners();
    std::ranges::sort(owners);
    for (OwnedBytes& owned : owners) owned.bytes /= layout_.page_bytes();
    return owners;
  }

  using Owned = std::vector<OwnedBytes>;
  const KvLayout layout_ = SmallLayout();
  const std::vector<ChunkKey> anns_ = Chain(10, 1), bobs_ = Chain(10, 2);
  PowerLossFileSystem memory_{1};
};

TEST_F(DiskTierQuotaTest, OwnersOutliveTheProcessAndAPowerCut) {
  auto tier = Open(memory_, 3);
  Put(*tier, bobs_, 0, 2, kBob);
  Put(*tier, anns_, 0, 3, kAnn);
  tier.reset();
  memory_.LosePower(/*kept=*/0);
  tier = Open(memory_, 3);
  EXPECT_EQ(Owners(*tier), (Owned{{kAnn, 3}, {kBob, 2}}));
  Put(*tier, anns_, 4, 6, kAnn);
  EXPECT_EQ(Owners(*tier), (Owned{{kAnn, 3}, {kBob, 2}}));
  EXPECT_EQ(tier->Residency(bobs_)[0], true);
  EXPECT_EQ(tier->Residency(anns_)[5], true);
}

TEST_F(DiskTierQuotaTest, ALowerQuotaIsKeptToFromTheStart) {
  auto tier = Open(memory_, 3);
  Put(*tier, bobs_, 0, 1, kBob);
  Put(*tier, anns_, 0, 3, kAnn);
  tier = nullptr;
  tier = Open(memory_, 1);
  EXPECT_TRUE(Eventually([&] { return Owners(*tier) == Owned{{kAnn, 1}, {kBob, 1}}; }));
}

TEST_F(DiskTierQuotaTest, WithoutAQuotaNobodyIsNoted) {
  auto tier = Open(memory_, 0);
  Put(*tier, anns_, 0, 2, kAnn);
  EXPECT_TRUE(tier->Owners().empty());
  tier = nullptr;
  tier = Open(memory_, 1);
  EXPECT_TRUE(tier->Owners().empty());
  EXPECT_EQ(tier->Stats().chunks, 2u);
}

TEST_F(DiskTierQuotaTest, WhatAnotherProcessWroteCountsOnceItIsFound) {
  const auto reader = Open(memory_, 3), writer = Open(memory_, 3);
  Put(*writer, anns_, 0, 2, kAnn);
  EXPECT_EQ(Held(*reader, {anns_[0]}), (std::vector<bool>{true}));
  EXPECT_EQ(Owners(*reader), (Owned{{kAnn, 1}}));
  Put(*reader, anns_, 1, 2, kAnn);  // it is there, and its owner is told
  EXPECT_EQ(reader->Stats().writes, 0u);
  EXPECT_EQ(Owners(*reader), (Owned{{kAnn, 2}}));
}

TEST_F(DiskTierQuotaTest, WhatAnotherProcessWroteCountsOnceItIsFoundByAClaim) {
  const auto reader = Open(memory_, 3), writer = Open(memory_, 3);
  Put(*writer, anns_, 0, 1, kAnn);
  EXPECT_EQ(ClaimKey(*reader, anns_[0]), ClaimState::kStored);
  EXPECT_EQ(Owners(*reader), (Owned{{kAnn, 1}}));
}

TEST_F(DiskTierQuotaTest, WhereAFileSystemNotesNoOwnersWhatThisProcessWroteCounts) {
  FaultyFileSystem faulty(memory_, 1);
  faulty.Set({.no_attribute = 1});
  const testing_util::CapturedLog log;
  auto tier = Open(faulty, 3);
  Put(*tier, bobs_, 0, 1, kBob);
  Put(*tier, anns_, 0, 5, kAnn);
  EXPECT_THAT(log.str(), HasSubstr("Operation not supported"));
  const std::string flag = "--tenant-store-bytes";
  EXPECT_EQ(log.str().find(flag), log.str().rfind(flag)) << "once";
  EXPECT_EQ(Owners(*tier), (Owned{{kAnn, 3}, {kBob, 1}}));
  tier = nullptr;
  tier = Open(faulty, 3);
  EXPECT_TRUE(tier->Owners().empty());
  EXPECT_EQ(tier->Stats().chunks, 4u);
  Put(*tier, anns_, 5, 6, kAnn);
  EXPECT_EQ(Owners(*tier), (Owned{{kAnn, 1}}));
}

// The real file system's attributes, where it has them.
TEST_F(DiskTierQuotaTest, OwnersAreAttributesOfTheirFiles) {
  const TempDir dir;
  FileSystem& fs = FileSystem::Real();
  {
    const auto file = fs.Create(dir.path() + "/probe", false).value();
    if (!WriteOwner(*file, kAnn)) GTEST_SKIP() << "no extended attributes here";
  }
  auto tier = Open(fs, 3, dir.path() + "/store");
  Put(*tier, anns_, 0, 2, kAnn);
  tier = nullptr;
  tier = Open(fs, 3, dir.path() + "/store");
  EXPECT_EQ(Owners(*tier), (Owned{{kAnn, 2}}));
  const StoreDir names(dir.path() + "/store");
  EXPECT_EQ(ReadOwner(fs, names.ChunkPath({Root(), anns_[0]})), kAnn);
}

}  // namespace
}  // namespace kvcake
