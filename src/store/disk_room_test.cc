// Who makes room, without a tier: what goes first, what stays, and what is swept by the way.
#include "store/disk_room.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "store/disk_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
namespace stdfs = std::filesystem;

class DiskRoomTest : public testing::Test {
 protected:
  // There is room for four chunks. The files of five are there, the first used longest ago.
  DiskRoomTest() {
    options_ = SmallOptions(dir_.path());
    options_.capacity_bytes = 4 * options_.layout.page_bytes();
    for (size_t i = 0; i < chain_.size(); ++i) {
      WriteFile(PathOf(i), options_.layout.page_bytes(), 1000 * static_cast<int64_t>(i + 1));
    }
  }
  void Open() {
    context_.emplace(options_, FileSystem::Real());
    room_.emplace(*context_);
    room_->ScanFirst();
  }
  std::string PathOf(size_t i) const {
    return StoreDir(options_.dir).ChunkPath({Root(), chain_[i]});
  }
  static void WriteFile(const std::string& path, uint64_t bytes, int64_t mtime_s) {
    stdfs::create_directories(stdfs::path(path).parent_path());
    std::ofstream(path) << std::string(bytes, 'x');
    ASSERT_TRUE(FileSystem::Real().Touch(path, mtime_s));
  }
  std::vector<bool> OnDisk() const {
    std::vector<bool> there;
    for (size_t i = 0; i < chain_.size(); ++i) there.push_back(stdfs::exists(PathOf(i)));
    return there;
  }
  TierStats Stats() const {
    TierStats stats;
    room_->AddStats(stats);
    return stats;
  }

  TempDir dir_;
  DiskTierOptions options_;
  const std::vector<ChunkKey> chain_ = Chain(5);
  std::optional<DiskContext> context_;
  std::optional<DiskRoom> room_;
};

TEST_F(DiskRoomTest, WhatWasUsedLongestAgoGoesAndWhatIsPinnedStays) {
  Open();
  context_->index.pins().Add(std::span(chain_).first(1));
  ASSERT_TRUE(room_->IsOverfull());
  room_->Shrink();
  EXPECT_EQ(OnDisk(), (std::vector<bool>{true, false, true, true, true}));
  ASSERT_TRUE(room_->MakeRoom(2 * context_->page_bytes()));
  EXPECT_EQ(OnDisk(), (std::vector<bool>{true, false, false, false, true}));
  EXPECT_EQ(Stats().evicted, 3u);
  context_->index.pins().Add(chain_);
  const auto status = room_->MakeRoom(3 * context_->page_bytes());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  ASSERT_TRUE(room_->Evict(chain_[0])) << "by name, though it is pinned";
  EXPECT_TRUE(room_->MakeRoom(3 * context_->page_bytes()));
}

TEST_F(DiskRoomTest, WhatAnotherProcessUsedMeanwhileStays) {
  Open();
  ASSERT_TRUE(FileSystem::Real().Touch(PathOf(0), 9000));
  room_->Shrink();
  EXPECT_EQ(OnDisk(), (std::vector<bool>{true, false, true, true, true}));
}

TEST_F(DiskRoomTest, WhileAnotherProcessEvictsOnlyWritesInFlightExceedTheCapacity) {
  Open();
  const auto lock = FileSystem::Real().TryLock(context_->store.LockPath());
  ASSERT_TRUE(lock && *lock);
  EXPECT_TRUE(room_->MakeRoom(context_->page_bytes()));
  EXPECT_EQ(OnDisk(), std::vector<bool>(5, true));
  for (int i = 0; i < 8; ++i) context_->index.AddWritten(Chain(8, 1)[i], context_->page_bytes());
  EXPECT_FALSE(room_->MakeRoom(context_->page_bytes()));
}

TEST_F(DiskRoomTest, AnOwnerIsKeptToItsQuotaUnlessAnotherProcessEvicts) {
  options_.capacity_bytes = 100 * options_.layout.page_bytes();
  options_.owner_quota_bytes = 2 * options_.layout.page_bytes();
  Open();
  for (size_t i = 1; i < 5; ++i) {
    context_->index.AddWritten(chain_[i], context_->page_bytes(), i == 1 ? kBob : kAnn);
  }
  EXPECT_TRUE(room_->IsOverfull());
  auto lock = FileSystem::Real().TryLock(context_->store.LockPath()).value();
  ASSERT_TRUE(lock);
  room_->KeepToQuota(kAnn);
  EXPECT_EQ(OnDisk(), std::vector<bool>(5, true));
  lock.reset();
  ASSERT_TRUE(room_->MakeRoom(context_->page_bytes(), kBob));
  EXPECT_EQ(OnDisk(), std::vector<bool>(5, true)) << "bob has room for one more";
  room_->Shrink();
  EXPECT_EQ(OnDisk(), (std::vector<bool>{true, true, false, true, true}));
  EXPECT_FALSE(room_->IsOverfull());
  ASSERT_TRUE(room_->MakeRoom(context_->page_bytes(), kAnn));
  EXPECT_EQ(OnDisk(), (std::vector<bool>{true, true, false, false, true}));
}

TEST_F(DiskRoomTest, WhatHasExpiredGoesThoughThereIsRoom) {
  options_.capacity_bytes = 100 * options_.layout.page_bytes();
  options_.time_to_live = Seconds(1000);
  ASSERT_TRUE(FileSystem::Real().Touch(PathOf(0), UnixSeconds()));
  Open();
  room_->Expire();
  EXPECT_EQ(OnDisk(), (std::vector<bool>{true, false, false, false, false}));
}

TEST_F(DiskRoomTest, AScanSweepsWhatDeadWritersLeftAndMovesBadFilesAway) {
  const std::string dead = PathOf(0) + ".tmp.0.1", young = PathOf(1) + ".tmp.0.1";
  WriteFile(dead, 5, UnixSeconds() - 1000);
  WriteFile(young, 5, UnixSeconds());
  WriteFile(PathOf(2), 5, 1000);
  Open();
  EXPECT_FALSE(stdfs::exists(dead));
  EXPECT_TRUE(stdfs::exists(young)) << "its writer may be in another pid namespace";
  EXPECT_FALSE(stdfs::exists(PathOf(2)));
  EXPECT_EQ(context_->bad_files.count(), 1u);
  EXPECT_EQ(context_->index.Totals().first, 4u);
}

TEST_F(DiskRoomTest, IsRefreshedByWhatComesAndGoes) {
  Open();
  stdfs::remove(PathOf(0));
  WriteFile(PathOf(0) + "0", 5, 1000);  // no chunk's name
  WriteFile(StoreDir(options_.dir).ChunkPath({Root(), Chain(1, 1)[0]}),
            options_.layout.page_bytes(), 1000);
  room_->Refresh();
  EXPECT_FALSE(context_->index.Contains(chain_[0]));
  EXPECT_TRUE(context_->index.Contains(Chain(1, 1)[0]));
  EXPECT_EQ(context_->index.Totals().first, 5u);
}

}  // namespace
}  // namespace kvcake
