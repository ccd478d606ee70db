// Room that is made because others fill the file system.
#include <gtest/gtest.h>

#include "store/disk_room_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

// Free space of a file system of 1000 chunks as a store of up to 100 sees it, a tenth to stay free.
class FreeSpaceTest : public DiskRoomTest {
 protected:
  FreeSpaceTest() {
    options_.capacity_bytes = 100 * page_;
    options_.free_share_min = 0.1;
    SetFree(98);
    fs_.before_remove = [&](const std::string&) {
      if (frees_) SetFree(++free_);
    };
    Open();
  }
  void SetFree(uint64_t pages) {
    free_ = pages;
    fs_.space = SpaceInfo{.free_bytes = pages * page_, .bytes = 1000 * page_};
  }
  // So many chunks more, used before all others.
  void AddOld(int chunks) {
    for (const ChunkKey& key : Chain(chunks, 7)) {
      WriteFile(StoreDir(options_.dir).ChunkPath({Root(), key}), page_, 500);
    }
    room_->ScanFirst();
  }

  const uint64_t page_ = options_.layout.page_bytes();
  uint64_t free_ = 0;
  bool frees_ = true;  // what is removed
};

TEST_F(FreeSpaceTest, WhatWasUsedLongestAgoMakesWayUntilThereIsEnough) {
  room_->Shrink();
  EXPECT_EQ(OnDisk(), (std::vector<bool>{false, false, true, true, true}));
  EXPECT_EQ(Stats().free_bytes, 100 * page_);
  SetFree(200);
  room_->Shrink();
  ASSERT_TRUE(room_->MakeRoom(page_));
  EXPECT_EQ(Stats().evicted, 2u) << "there is enough";
}

TEST_F(FreeSpaceTest, AsManyGoAsComeWhileThereIsTooLittle) {
  ASSERT_TRUE(room_->MakeRoom(page_));
  room_->NoteWritten(page_, /*after_freeing=*/false);
  EXPECT_EQ(Stats().evicted, 1u);
  EXPECT_EQ(Stats().free_bytes, 98 * page_);
  context_->index.pins().Add(chain_);
  EXPECT_FALSE(room_->MakeRoom(page_));
  context_->index.pins().Remove(chain_);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(room_->MakeRoom(page_));
    room_->NoteWritten(page_, /*after_freeing=*/false);
  }
  const auto status = room_->MakeRoom(page_);
  ASSERT_FALSE(status) << "nothing is left to go";
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(status.error().message.find("--disk-free-min"), std::string::npos);
}

TEST_F(FreeSpaceTest, WhereEvictingFreesNothingItIsNotGoneOnWith) {
  frees_ = false;
  AddOld(40);
  fs_.space = SpaceInfo{.free_bytes = 10 * page_, .bytes = 1000 * page_};
  room_->Shrink();
  const uint64_t evicted = Stats().evicted;
  EXPECT_LE(evicted, 16u) << "one batch";
  room_->Shrink();
  EXPECT_EQ(Stats().evicted, evicted) << "it was a moment ago";
  ASSERT_TRUE(room_->MakeRoom(page_)) << "new chunks take the place of old ones";
}

TEST_F(FreeSpaceTest, WhatIsWrittenHereMeanwhileIsNoReasonToGiveUp) {
  AddOld(40);
  fs_.before_remove = [&](const std::string&) {
    if (Stats().evicted < 20) {
      room_->NoteWritten(page_, /*after_freeing=*/false);
    } else {
      SetFree(++free_);
    }
  };
  room_->Shrink();
  EXPECT_EQ(Stats().evicted, 22u);
}

TEST_F(FreeSpaceTest, WhereTheSystemWasStillFullWithoutThemNoMoreGoForIt) {
  room_->NoteStillFull();
  const auto status = room_->FreeSpace(page_);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(Stats().evicted, 0u);
}

TEST_F(FreeSpaceTest, WhereEvictingFreesNothingAnyMoreItIsNotGoneOnWith) {
  AddOld(60);
  SetFree(10);
  fs_.before_remove = [&](const std::string&) {
    if (free_ < 26) SetFree(++free_);  // a snapshot keeps what follows
  };
  room_->Shrink();
  EXPECT_LE(Stats().evicted, 32u) << "a batch that made room, and one that did not";
}

}  // namespace
}  // namespace kvcake
