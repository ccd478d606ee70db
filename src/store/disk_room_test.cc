// Who makes room, without a tier: what goes first, what stays, and what is swept by the way.
#include "store/disk_room.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>

#include "base/log_testing.h"
#include "store/disk_room_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
namespace stdfs = std::filesystem;

TEST_F(DiskRoomTest, WhatWasUsedLongestAgoGoesAndWhatIsPinnedStays) {
  Open();
  context_->index.pins().Add(std::span(chain_).first(1));
  ASSERT_TRUE(room_->IsOverfull());
  room_->Shrink();
  EXPECT_EQ(OnDisk(), (std::vector<bool>{true, false, true, true, true}));
  ASSERT_TRUE(room_->MakeRoom(2 * context_->file_bytes_max()));
  EXPECT_EQ(OnDisk(), (std::vector<bool>{true, false, false, false, true}));
  EXPECT_EQ(Stats().evicted, 3u);
  context_->index.pins().Add(chain_);
  const auto status = room_->MakeRoom(3 * context_->file_bytes_max());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  ASSERT_TRUE(room_->Evict(chain_[0])) << "by name, though it is pinned";
  EXPECT_TRUE(room_->MakeRoom(3 * context_->file_bytes_max()));
}

TEST_F(DiskRoomTest, WhatHasGoneMeanwhileWasNotEvicted) {
  Open();
  stdfs::remove(PathOf(0));
  room_->Shrink();
  EXPECT_EQ(OnDisk(), (std::vector<bool>{false, true, true, true, true}));
  EXPECT_EQ(context_->index.Totals().first, 4u);
  EXPECT_EQ(Stats().evicted, 0u);
}

TEST_F(DiskRoomTest, WhatCannotBeRemovedIsToldOfUntilItCan) {
  CapturedLog log;
  Open();
  fs_.before_remove = [&](const std::string&) { fs_.Set({.change_error = 1}); };
  room_->Shrink();
  EXPECT_EQ(Stats().evictions_failed, 5u);
  EXPECT_EQ(log.Count("store: removing files to make room fails: "), 1);
  fs_.before_remove = nullptr;
  fs_.Set({});
  room_->Shrink();
  EXPECT_EQ(Stats().evicted, 1u);
  EXPECT_EQ(log.Count("store: removing files to make room works again"), 1);
}

TEST_F(DiskRoomTest, WhatAnotherProcessUsedMeanwhileStays) {
  Open();
  ASSERT_TRUE(FileSystem::Real().Touch(PathOf(0), 9000));
  room_->Shrink();
  EXPECT_EQ(OnDisk(), (std::vector<bool>{true, false, true, true, true}));
}

TEST_F(DiskRoomTest, WhatAnotherProcessUsedMeanwhileMakesNoRoom) {
  Open();
  for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(FileSystem::Real().Touch(PathOf(i), 9000));
  ASSERT_TRUE(room_->MakeRoom(context_->file_bytes_max()));
  EXPECT_EQ(OnDisk(), (std::vector<bool>{true, true, false, false, true}));
}

TEST_F(DiskRoomTest, WhatIsNotRemovedByNameIsNotCounted) {
  Open();
  stdfs::remove(PathOf(0));
  EXPECT_TRUE(room_->Evict(chain_[0]));
  EXPECT_FALSE(context_->index.Contains(chain_[0]));
  fs_.Set({.change_error = 1});
  EXPECT_FALSE(room_->Evict(chain_[1]));
  EXPECT_TRUE(context_->index.Contains(chain_[1]));
  EXPECT_EQ(Stats().evicted, 0u);
}

TEST_F(DiskRoomTest, WhileAnotherProcessEvictsOnlyWritesInFlightExceedTheCapacity) {
  Open();
  const auto lock = FileSystem::Real().TryLock(context_->store.LockPath());
  ASSERT_TRUE(lock && *lock);
  EXPECT_TRUE(room_->MakeRoom(context_->file_bytes_max()));
  EXPECT_EQ(OnDisk(), std::vector<bool>(5, true));
  for (int i = 0; i < 8; ++i)
    context_->index.AddWritten(Chain(8, 1)[i], context_->file_bytes_max());
  EXPECT_FALSE(room_->MakeRoom(context_->file_bytes_max()));
}

TEST_F(DiskRoomTest, WhereThereIsFarTooMuchAWriterWaitsForWhoEvicts) {
  Open();
  for (const ChunkKey& key : Chain(8, 1))
    context_->index.AddWritten(key, context_->file_bytes_max());
  auto lock = FileSystem::Real().TryLock(context_->store.LockPath()).value();
  ASSERT_TRUE(lock);
  int tries = 0;
  fs_.before_lock = [&](const std::string&) {
    if (++tries == 3) lock.reset();
  };
  EXPECT_TRUE(room_->MakeRoom(context_->file_bytes_max()));
  EXPECT_EQ(OnDisk(), (std::vector<bool>{false, false, true, true, true}));
}

TEST_F(DiskRoomTest, WhereAllOfWhoIsOverItsQuotaIsInUseOthersMakeWay) {
  options_.owner_quota_bytes = options_.layout.page_bytes();
  Open();
  const auto anns = std::span(chain_).first(2);
  for (const ChunkKey& key : anns) {
    context_->index.AddWritten(key, context_->file_bytes_max(), kAnn);
  }
  context_->index.pins().Add(anns);
  ASSERT_TRUE(room_->MakeRoom(context_->file_bytes_max(), kBob));
  EXPECT_EQ(OnDisk(), (std::vector<bool>{true, true, false, false, true}));
}

// The rest of what is too much is upkeep's.
TEST_F(DiskRoomTest, AWriterRemovesTwoOfItsOwnersChunksAtMost) {
  options_.capacity_bytes = 100 * options_.layout.page_bytes();
  options_.owner_quota_bytes = options_.layout.page_bytes();
  Open();
  for (const ChunkKey& key : chain_) {
    context_->index.AddWritten(key, context_->file_bytes_max(), kAnn);
  }
  room_->KeepToQuota(kAnn);
  EXPECT_EQ(OnDisk(), (std::vector<bool>{false, false, true, true, true}));
}

TEST_F(DiskRoomTest, AnOwnerIsKeptToItsQuotaUnlessAnotherProcessEvicts) {
  options_.capacity_bytes = 100 * options_.layout.page_bytes();
  options_.owner_quota_bytes = 2 * options_.layout.page_bytes();
  Open();
  for (size_t i = 1; i < 5; ++i) {
    context_->index.AddWritten(chain_[i], context_->file_bytes_max(), i == 1 ? kBob : kAnn);
  }
  EXPECT_TRUE(room_->IsOverfull());
  auto lock = FileSystem::Real().TryLock(context_->store.LockPath()).value();
  ASSERT_TRUE(lock);
  room_->KeepToQuota(kAnn);
  EXPECT_EQ(OnDisk(), std::vector<bool>(5, true));
  lock.reset();
  ASSERT_TRUE(room_->MakeRoom(context_->file_bytes_max(), kBob));
  EXPECT_EQ(OnDisk(), std::vector<bool>(5, true)) << "bob has room for one more";
  room_->Shrink();
  EXPECT_EQ(OnDisk(), (std::vector<bool>{true, true, false, true, true}));
  EXPECT_FALSE(room_->IsOverfull());
  ASSERT_TRUE(room_->MakeRoom(context_->file_bytes_max(), kAnn));
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

// As a clock that was ahead has left it. It would be the last to go after each start.
TEST_F(DiskRoomTest, AFileOfTheFutureCountsAsUsedWhenItIsFound) {
  const int64_t began_s = UnixSeconds();
  ASSERT_TRUE(FileSystem::Real().Touch(PathOf(0), Ahead()));
  Open();
  EXPECT_LE(TimeOf(0), UnixSeconds());
  EXPECT_GE(TimeOf(0), began_s);
  EXPECT_EQ(context_->index.files().Coldest()->id.key, chain_[1]);
  for (size_t i = 1; i < 5; ++i) ASSERT_TRUE(FileSystem::Real().Touch(PathOf(i), TimeOf(0) + 10));
  Open();
  EXPECT_EQ(context_->index.files().Coldest()->id.key, chain_[0]);
}

// A file server's clock may be ahead, or that of another host which uses the files: scans leave
// alone what they know.
TEST_F(DiskRoomTest, AFileOfTheFutureIsSetBackOnceByScans) {
  for (const bool keeps_times : {true, false}) {
    for (size_t i = 0; i < 5; ++i) ASSERT_TRUE(FileSystem::Real().Touch(PathOf(i), Ahead()));
    fs_.keeps_times = keeps_times;
    fs_.touches = 0;
    Open();
    EXPECT_EQ(fs_.touches, 5);
    for (size_t i = 0; i < 5; ++i) ASSERT_TRUE(FileSystem::Real().Touch(PathOf(i), Ahead() + 9));
    DiskScan(*context_).Run();
    EXPECT_EQ(fs_.touches, 5);
    EXPECT_EQ(context_->index.Totals().first, 5u);
  }
}

TEST_F(DiskRoomTest, WhatAHostWhoseClockIsAheadUsedMeanwhileStaysAndNotForEver) {
  for (const bool keeps_times : {true, false}) {
    fs_.keeps_times = keeps_times;
    for (size_t i = 0; i < 5; ++i) WriteFile(PathOf(i), options_.layout.page_bytes(), 1000);
    Open();
    const ChunkKey key = context_->index.files().Coldest()->id.key;
    const auto used = std::find(chain_.begin(), chain_.end(), key) - chain_.begin();
    ASSERT_TRUE(FileSystem::Real().Touch(PathOf(used), Ahead()));
    room_->Shrink();
    EXPECT_TRUE(OnDisk()[used]) << keeps_times;
    EXPECT_EQ(TimeOf(used) <= UnixSeconds(), keeps_times) << "and is set back";
    ASSERT_TRUE(room_->MakeRoom(3 * context_->file_bytes_max()));
    EXPECT_TRUE(OnDisk()[used]) << "it was used last";
    ASSERT_TRUE(room_->MakeRoom(4 * context_->file_bytes_max()));
    EXPECT_EQ(OnDisk(), std::vector<bool>(5)) << keeps_times;
  }
}

TEST_F(DiskRoomTest, AFileOfTheFutureKeepsNoOtherFromExpiring) {
  options_.capacity_bytes = 100 * options_.layout.page_bytes();
  options_.time_to_live = Seconds(1000);
  ASSERT_TRUE(FileSystem::Real().Touch(PathOf(0), Ahead()));
  fs_.keeps_times = false;
  Open();
  Catalogue& files = context_->index.files();
  for (size_t i = 1; i < 5; ++i) files.Postpone({Root(), chain_[i]});
  ASSERT_EQ(files.Coldest()->mtime_s, Ahead());
  room_->Expire();
  EXPECT_EQ(OnDisk(), (std::vector<bool>{true, false, false, false, false}));
  EXPECT_LE(files.Coldest()->mtime_s, UnixSeconds()) << "it begins to age";
}

TEST_F(DiskRoomTest, AScanMovesBadFilesAway) {
  WriteFile(PathOf(2), 5, 1000);
  Open();
  EXPECT_FALSE(stdfs::exists(PathOf(2)));
  EXPECT_EQ(context_->bad_files.count(), 1u);
  EXPECT_EQ(context_->index.Totals().first, 4u);
}

TEST_F(DiskRoomTest, AFileOfAnotherModelHasASizeOfItsOwn) {
  const ChunkKey other = KvIdentity().Add("model", "another").Root();
  const std::string path = StoreDir(options_.dir).ChunkPath({other, chain_[0]});
  WriteFile(path, 5, 1000);
  Open();
  EXPECT_TRUE(stdfs::exists(path));
  EXPECT_EQ(context_->bad_files.count(), 0u);
  EXPECT_EQ(context_->index.files().bytes(), 5 * context_->file_bytes_max() + 5);
}

// Times of files may be of another machine's clock, and pids of another machine's processes.
TEST_F(DiskRoomTest, ATemporaryThatSeemsLeftIsSweptWhenItHasBeenSeenUnchanged) {
  const std::string dead = PathOf(0) + ".tmp.0.1", old = PathOf(1) + TemporaryName(""),
                    written = PathOf(2) + ".tmp.0.1", young = PathOf(3) + TemporaryName(""),
                    resumed = PathOf(4) + ".tmp.0.1";
  for (const std::string& path : {dead, old, written, resumed}) WriteFile(path, 5, 1000);
  WriteFile(young, 5, UnixSeconds());
  options_.temporary_age_min = Seconds(1000);
  Open();
  FakeClock clock;
  DiskScan scan(*context_, clock);
  scan.Run();
  clock.Advance(Seconds(900));
  scan.Sweep();
  for (const std::string& path : {dead, old, written}) EXPECT_TRUE(stdfs::exists(path)) << path;
  WriteFile(written, 6, 1000);
  scan.Run();  // knows the others still
  clock.Advance(Seconds(100));
  WriteFile(resumed, 6, 1000);
  scan.Sweep();
  EXPECT_FALSE(stdfs::exists(dead) || stdfs::exists(old));
  EXPECT_TRUE(stdfs::exists(written) && stdfs::exists(young) && stdfs::exists(resumed));
  EXPECT_EQ(context_->bad_files.count(), 0u);
}

TEST_F(DiskRoomTest, TemporariesOfWhatIsKeptBesideChunksAreSweptToo) {
  const StoreDir store(options_.dir);
  const std::string root = store.RootDir(Root());
  const std::string cost = root + "/cost-0123456789abcdef.json";
  const std::string ranks = root + "/ranks-0123456789abcdef.json";
  const std::string foreign = root + "/notes.txt.tmp.0.1", young = TemporaryName(cost);
  std::vector<std::string> left;
  for (const auto& path : {store.ModelPath(Root()), store.UsagePath(Root()), cost, ranks}) {
    left.push_back(path + ".tmp.0.1");
    WriteFile(path, 5, 1000);
    WriteFile(left.back(), 5, 1000);
  }
  WriteFile(foreign, 5, 1000);
  WriteFile(young, 5, UnixSeconds());
  options_.temporary_age_min = Seconds(0);
  Open();
  DiskScan scan(*context_);
  scan.Run();
  for (const std::string& path : left) EXPECT_FALSE(stdfs::exists(path)) << path;
  for (const std::string& path : {cost, ranks, foreign, young, store.UsagePath(Root())}) {
    EXPECT_TRUE(stdfs::exists(path)) << path;
  }
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

TEST_F(DiskRoomTest, WhatComesIntoADirectoryThatWasThereIsSeen) {
  Open();
  FakeClock clock;
  DiskScan scan(*context_, clock);
  scan.RunFirst(1);
  clock.Advance(Seconds(10));
  scan.RunIfChanged();
  ChunkKey key = chain_[0];
  key.digest[31] ^= 1;
  WriteFile(StoreDir(options_.dir).ChunkPath({Root(), key}), options_.layout.page_bytes(), 1000);
  ASSERT_TRUE(
      FileSystem::Real().Touch(context_->store.ShardDir({Root(), key}), UnixSeconds() + 100));
  clock.Advance(Seconds(10));
  scan.RunIfChanged();
  EXPECT_TRUE(context_->index.Contains(key));
}

// As those of a file server are, by a clock that is not ours.
TEST_F(DiskRoomTest, DirectoriesMayHaveTimesOfAnotherClock) {
  FakeClock clock;
  for (const int64_t ahead : {int64_t{-3600}, int64_t{3600}}) {
    int64_t time_s = UnixSeconds() + ahead;
    const auto set_times = [&] {
      const std::string base = StoreDir(options_.dir).Base();
      ASSERT_TRUE(FileSystem::Real().Touch(base, time_s));
      for (const auto& entry : stdfs::recursive_directory_iterator(base)) {
        if (!entry.is_directory()) continue;
        ASSERT_TRUE(FileSystem::Real().Touch(entry.path(), time_s));
      }
    };
    set_times();
    Open();
    DiskScan scan(*context_, clock);
    const auto scans = [&] {
      clock.Advance(Seconds(10));
      const uint64_t before = context_->scans.totals().calls;
      scan.RunIfChanged();
      return context_->scans.totals().calls - before;
    };
    scan.RunFirst(1);
    EXPECT_EQ(scans(), 1u) << "its second may not have been over";
    EXPECT_EQ(scans(), 0u) << ahead;
    const ChunkKey key = Chain(1, 1 + (ahead > 0))[0];
    WriteFile(StoreDir(options_.dir).ChunkPath({Root(), key}), options_.layout.page_bytes(), 1000);
    time_s += 100;
    set_times();
    EXPECT_EQ(scans(), 1u) << ahead;
    EXPECT_TRUE(context_->index.Contains(key)) << ahead;
    scans();
    EXPECT_EQ(scans(), 0u) << ahead;
  }
}

// Directories' times show the first only of all changes within a second, which is over a second
// after they were read, however long that took.
TEST_F(DiskRoomTest, WhatComesWithinTheSecondOfAnotherChangeIsSeen) {
  const auto chain = Chain(2, 1);
  const StoreDir store(options_.dir);
  const auto set_times = [&](int64_t time_s) {
    for (const ChunkKey& key : chain) {
      const std::string shard = store.ShardDir({Root(), key});
      stdfs::create_directories(shard);
      for (const std::string& dir : {store.RootDir(Root()), shard}) {
        ASSERT_TRUE(FileSystem::Real().Touch(dir, time_s));
      }
    }
  };
  const auto add = [&](const ChunkKey& key) {
    WriteFile(store.ChunkPath({Root(), key}), options_.layout.page_bytes(), 1000);
    set_times(2000);
  };
  set_times(1000);
  Open();
  FakeClock clock;
  DiskScan scan(*context_, clock);
  scan.RunFirst(1);
  add(chain[0]);
  bool stopped = false;
  fs_.before_list = [&](const std::string&) {  // as if the process had been stopped meanwhile
    if (!std::exchange(stopped, true)) clock.Advance(Seconds(5));
  };
  scan.RunIfChanged();
  clock.Advance(Seconds(0.05));
  scan.RunIfChanged();
  EXPECT_TRUE(context_->index.Contains(chain[0]));
  add(chain[1]);
  clock.Advance(Seconds(0.05));
  scan.RunIfChanged();
  EXPECT_TRUE(context_->index.Contains(chain[1]));
}

TEST_F(DiskRoomTest, AWriterWaitsForNoScan) {
  options_.rescan_interval = Seconds(0);
  Open();
  std::atomic<bool> scanning{false}, hung{true};
  fs_.before_list = [&](const std::string& path) {
    if (path != context_->store.ShardDir({Root(), chain_[0]})) return;
    scanning = true;
    hung.wait(true);
  };
  std::future<void> scan;
  auto written = std::async(std::launch::async, [&] {
    const Status first = room_->MakeRoom(context_->file_bytes_max());  // as five files are too many
    scan = std::async(std::launch::async, [&] { room_->Refresh(); });
    if (!first || !Eventually([&] { return scanning.load(); })) return first;
    return room_->MakeRoom(2 * context_->file_bytes_max());
  });
  const bool waited = written.wait_for(std::chrono::seconds(60)) != std::future_status::ready;
  hung = false;
  hung.notify_all();
  EXPECT_FALSE(waited);
  EXPECT_TRUE(written.get());
  scan.wait();
  EXPECT_EQ(OnDisk(), (std::vector<bool>{false, false, false, true, true}));
  EXPECT_EQ(context_->index.Totals().first, 2u);
}

TEST_F(DiskRoomTest, WhatIsEvictedAfterItWasListedIsForgotten) {
  Open();
  fs_.after_list = [&](const std::string& path) {
    if (path == context_->store.ShardDir({Root(), chain_[0]})) {
      EXPECT_TRUE(room_->Evict(chain_[0]));
    }
  };
  room_->Refresh();
  EXPECT_FALSE(context_->index.Contains(chain_[0]));
  EXPECT_EQ(context_->index.Totals().first, 4u);
}

TEST_F(DiskRoomTest, AScanThatTakesLongerThanTheIntervalIsNotDueAtItsEnd) {
  options_.rescan_interval = Seconds(1000);
  Open();
  FakeClock clock;
  DiskScan scan(*context_, clock);
  fs_.before_list = [&](const std::string&) { clock.Advance(Seconds(2000)); };
  scan.Run();
  EXPECT_FALSE(scan.IsDue());
  clock.Advance(Seconds(1000.01));
  EXPECT_TRUE(scan.IsDue());
}

TEST_F(DiskRoomTest, AWriterInADirectoryThatHoldsFarTooMuchRemovesWhatItNeeds) {
  Open();
  context_.reset();
  options_.capacity_bytes = options_.layout.page_bytes();
  Open();
  ASSERT_TRUE(room_->MakeRoom(context_->file_bytes_max()));
  EXPECT_EQ(OnDisk(), (std::vector<bool>{false, false, true, true, true}));
  room_->Shrink();
  EXPECT_EQ(OnDisk(), (std::vector<bool>{false, false, false, false, true}));
}

TEST_F(DiskRoomTest, WritersComeBetweenTheBatchesThatUpkeepEvicts) {
  const auto many = Chain(100, 7);
  for (const ChunkKey& key : many) {
    WriteFile(StoreDir(options_.dir).ChunkPath({Root(), key}), options_.layout.page_bytes(), 500);
  }
  Open();
  int batches = 0;
  room_.emplace(*context_, [&] {
    ++batches;
    EXPECT_TRUE(room_->MakeRoom(0)) << "would wait for ever for the mutex";
  });
  room_->Shrink();
  EXPECT_GE(batches, 101 / 16);
  EXPECT_EQ(context_->index.Totals().first, 4u);
}

TEST_F(DiskRoomTest, UpkeepThatIsStoppedEndsWithTheDirectoryItIsAt) {
  CapturedLog log;
  Open();
  int shards = 0;
  fs_.before_list = [&](const std::string& path) {
    if (path.size() == context_->store.ShardDir({Root(), chain_[0]}).size() && ++shards == 1) {
      room_->StopUpkeep();
    }
  };
  stdfs::remove(PathOf(0));
  room_->Refresh();
  EXPECT_EQ(shards, 1);
  EXPECT_EQ(log.Count("looking for files fails"), 0) << "it was told to";
  EXPECT_EQ(context_->index.Totals().first, 5u)
      << "a part of the directory says nothing of the rest";
  room_->Shrink();
  EXPECT_EQ(Stats().evicted, 0u);
}

}  // namespace
}  // namespace kvcake
