// Bad files on their way out: which file is moved, when its reader hears of it, what may stay.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "io/faulty_file_system_testing.h"
#include "store/disk_tier.h"
#include "store/quarantine.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
namespace stdfs = std::filesystem;

class QuarantineTest : public testing::Test {
 protected:
  QuarantineTest() {
    options_.dir = dir_.path();
    options_.layout = SmallLayout();
    options_.root = Root();
    options_.missing_ttl = Seconds(0);
    options_.upkeep_interval = Seconds(3600);
    options_.quarantine_files_max = 1;
    tier_ = DiskTier::Open(options_, fs_).value();
    for (size_t i = 0; i < chain_.size(); ++i) EXPECT_TRUE(Put(i));
  }
  Status Put(size_t i) { return PutChunk(*tier_, options_.layout, chain_[i], ParentOf(chain_, i)); }
  std::optional<ErrorCode> Read(size_t i) {
    return ReadBack(*tier_, options_.layout, chain_[i], ParentOf(chain_, i));
  }
  size_t Start(size_t i) {
    return reads_.Start(*tier_, options_.layout, chain_[i], ParentOf(chain_, i));
  }
  std::string PathOf(size_t i) { return StoreDir(options_.dir).ChunkPath({Root(), chain_[i]}); }
  void Damage(size_t i) {
    std::fstream file(PathOf(i), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(kPageHeaderBytes + 5);
    file.put('?');
    ASSERT_TRUE(file.good());
  }
  size_t Quarantined() { return ListQuarantine(options_.dir)->size(); }

  TempDir dir_;
  FaultyFileSystem fs_{FileSystem::Real(), 1};
  DiskTierOptions options_;
  const std::vector<ChunkKey> chain_ = Chain(4);
  Reads reads_;  // outlives the tier
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(QuarantineTest, AReadIsAnsweredOnceItsBadFileHasGoneThoughItIsCancelled) {
  Damage(0);
  fs_.Set({.change_stall = 1});
  const size_t bad = Start(0);
  ASSERT_TRUE(Eventually([&] { return fs_.faults() > 0; }));  // it is being moved away
  tier_->Cancel(reads_.id(bad));
  fs_.Set({.open_stall = 1});  // the other is not read before it is cancelled
  const size_t other = Start(1);
  tier_->Cancel(reads_.id(other));
  EXPECT_EQ(reads_.Wait(other).status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(reads_.answers(bad), 0) << "or a new file of that name would be moved away";
  fs_.Set({});
  fs_.ReleaseStalled();
  EXPECT_EQ(reads_.Wait(bad).status.error().code, ErrorCode::kCorrupt);
  EXPECT_FALSE(stdfs::exists(PathOf(0)));
}

TEST_F(QuarantineTest, ANewFileOfTheSameNameIsNotTakenForTheBadOne) {
  const std::string copy = dir_.path() + "/copy";
  stdfs::copy_file(PathOf(0), copy);
  Damage(0);
  fs_.Set({.stat_stall = 1});
  const size_t bad = Start(0);
  ASSERT_TRUE(Eventually([&] { return fs_.faults() > 0; }));  // it is about to be moved away
  stdfs::rename(copy, PathOf(0));                             // as another process would
  fs_.Set({});
  fs_.ReleaseStalled();
  EXPECT_EQ(reads_.Wait(bad).status.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(Quarantined(), 0u);
  EXPECT_EQ(Read(0), std::nullopt);
}

TEST_F(QuarantineTest, ItsRoomIsWhatIsThereNow) {
  Damage(0);
  EXPECT_EQ(Read(0), ErrorCode::kCorrupt);
  Damage(1);
  EXPECT_EQ(Read(1), ErrorCode::kCorrupt);
  EXPECT_EQ(Quarantined(), 1u) << "the second is deleted";
  ASSERT_TRUE(ClearQuarantine(options_.dir));
  Damage(2);
  EXPECT_EQ(Read(2), ErrorCode::kCorrupt);
  EXPECT_EQ(Quarantined(), 1u);
  EXPECT_EQ(tier_->Stats().quarantined, 3u);
}

TEST_F(QuarantineTest, AFileOfAnotherChunkIsSaidToBeThat) {
  stdfs::copy_file(PathOf(1), PathOf(0), stdfs::copy_options::overwrite_existing);
  EXPECT_EQ(Read(0), ErrorCode::kCorrupt);
  const auto bad = ListQuarantine(options_.dir).value();
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(WhyQuarantined(bad[0]), "it belongs to another chunk: " + chain_[1].Hex());
}

// Who shares the directory could have files moved to where only this process may write.
TEST_F(QuarantineTest, ALinkInItsPlaceIsNotFollowed) {
  const TempDir other;
  stdfs::create_symlink(other.path(), StoreDir(options_.dir).QuarantineDir());
  Damage(0);
  EXPECT_EQ(Read(0), ErrorCode::kCorrupt);
  EXPECT_TRUE(stdfs::is_empty(other.path()));
  EXPECT_EQ(tier_->Stats().quarantined, 0u);
  EXPECT_FALSE(Held(*tier_, {chain_[0]})[0]);
}

TEST_F(QuarantineTest, ABadFileThatCannotBeMovedIsLeftAloneAndReplaced) {
  Damage(0);
  fs_.Set({.change_error = 1});
  EXPECT_EQ(Read(0), ErrorCode::kCorrupt);
  EXPECT_EQ(tier_->Stats().quarantined, 0u);
  EXPECT_FALSE(Held(*tier_, {chain_[0]})[0]) << "it would be as bad the next time";
  EXPECT_FALSE(Put(0));
  fs_.Set({});
  ASSERT_TRUE(Put(0));
  EXPECT_EQ(Read(0), std::nullopt);
}

}  // namespace
}  // namespace kvcake
