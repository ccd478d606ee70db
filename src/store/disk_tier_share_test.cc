// One directory, several processes and clocks: what a tier learns, keeps and removes by itself.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "io/faulty_file_system_testing.h"
#include "store/disk_tier.h"
#include "store/store_dir.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
namespace stdfs = std::filesystem;

class SharedStoreTest : public testing::Test {
 protected:
  SharedStoreTest() {
    options_.dir = dir_.path();
    options_.layout = SmallLayout();
    options_.root = Root();
    options_.missing_ttl = Seconds(0.05);
    options_.upkeep_interval = Seconds(0.05);
  }
  std::unique_ptr<DiskTier> Open(FileSystem& fs = FileSystem::Real()) {
    return DiskTier::Open(options_, fs).value();
  }
  std::string PathOf(const ChunkKey& key) const {
    return StoreDir(dir_.path()).ChunkPath({Root(), key});
  }
  Status Put(DiskTier& tier, const std::vector<ChunkKey>& chain, size_t i) {
    return PutChunk(tier, options_.layout, chain[i], ParentOf(chain, i));
  }
  // Counts chunks, whole or being written.
  uint64_t BytesOnDisk() const {
    uint64_t bytes = 0;
    std::error_code gone;  // files come and go meanwhile
    for (stdfs::recursive_directory_iterator it(dir_.path(), gone), end; it != end;
         it.increment(gone)) {
      if (it->is_regular_file(gone) && it->path().filename().string().size() >= 64) {
        const uint64_t size = it->file_size(gone);
        bytes += gone ? 0 : size;
      }
    }
    return bytes;
  }
  // Runs `body` in a process of its own, once told to Go; it must end well. Before any tier is open
  // here: a fork takes no threads along.
  template <typename Body>
  pid_t Fork(Body body) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(Eventually([&] { return stdfs::exists(go_); }) && body() ? 0 : 1);
    return child;
  }
  void Go() { CHECK(stdfs::create_directory(go_)); }
  static void Join(pid_t child) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  TempDir dir_, signals_;
  const std::string go_ = signals_.path() + "/go";
  DiskTierOptions options_;
  const std::vector<ChunkKey> chain_ = Chain(12);
};

TEST_F(SharedStoreTest, WhatAnotherProcessWritesIsSeenWithoutARestart) {
  const pid_t child = Fork([&] {
    auto other = Open();
    for (size_t i = 0; i < chain_.size(); ++i) {
      if (!Put(*other, chain_, i)) return false;
    }
    return true;
  });
  auto tier = Open();
  for (const ChunkKey& key : chain_) EXPECT_FALSE(Held(*tier, {key})[0]);
  Go();
  Join(child);
  // By those who ask, once a miss is forgotten; and by those who do not, by upkeep.
  EXPECT_TRUE(Eventually([&]() -> bool { return Held(*tier, {chain_[0]})[0]; }));
  EXPECT_TRUE(Eventually([&] { return tier->Stats().chunks == chain_.size(); }));
  EXPECT_EQ(tier->Residency(chain_), std::vector<bool>(chain_.size(), true));
  for (size_t i = 0; i < chain_.size(); ++i) {
    EXPECT_EQ(ReadBack(*tier, options_.layout, chain_[i], ParentOf(chain_, i)), std::nullopt);
  }
}

TEST_F(SharedStoreTest, AFileEvictedByAnotherProcessIsAMissAndAReadInProgressIsNotBroken) {
  const pid_t child = Fork([&] {
    auto other = Open();
    for (const ChunkKey& key : chain_) {
      if (!other->Evict(key)) return false;
    }
    return true;
  });
  auto tier = Open();
  for (size_t i = 0; i < chain_.size(); ++i) ASSERT_TRUE(Put(*tier, chain_, i));
  Go();
  int missed = 0;
  for (int round = 0; round < 200; ++round) {
    Reads reads;
    for (size_t i = 0; i < chain_.size(); ++i) {
      reads.Start(*tier, options_.layout, chain_[i], ParentOf(chain_, i));
    }
    missed = 0;
    for (size_t i = 0; i < chain_.size(); ++i) {
      const ReadResult result = reads.Wait(i);
      if (result.status) {
        EXPECT_TRUE(HoldsChunk(chain_[i], reads.landing(i)));
      } else {
        EXPECT_EQ(result.status.error().code, ErrorCode::kNotFound);
        ++missed;
      }
    }
    if (missed == static_cast<int>(chain_.size())) break;
  }
  Join(child);
  EXPECT_EQ(tier->Stats().reads_failed + tier->Stats().quarantined, 0u);
}

// A chunk gets its name when it is whole: whoever scans meanwhile never takes one for a bad file.
TEST_F(SharedStoreTest, AScanSeesNoChunkHalfWritten) {
  options_.upkeep_interval = Seconds(0);
  const std::string enough = signals_.path() + "/enough";
  const pid_t child = Fork([&] {
    auto other = Open();
    while (true) {
      const bool last = stdfs::exists(enough);
      for (size_t i = 0; i < chain_.size(); ++i) {
        if (!Put(*other, chain_, i)) return false;
      }
      if (last) return other->Stats().quarantined == 0;
      for (const ChunkKey& key : chain_) {
        if (!other->Evict(key)) return false;
      }
    }
  });
  Go();
  uint64_t quarantined = 0;
  for (int scan = 0; scan < 100; ++scan) {  // each as when a tier is opened
    quarantined += Open()->Stats().quarantined;
  }
  CHECK(stdfs::create_directory(enough));
  Join(child);
  EXPECT_EQ(quarantined, 0u);
  EXPECT_EQ(Open()->Stats().chunks, chain_.size());
}

// Three writers; the directory keeps to its capacity but for what is being written and what the
// others have not heard of yet, and comes back to it when they rest.
TEST_F(SharedStoreTest, CapacityHoldsForTheDirectory) {
  constexpr int kChunks = 30;
  options_.capacity_bytes = kChunks * options_.layout.page_bytes();
  std::vector<pid_t> children;
  for (int writer = 0; writer < 3; ++writer) {
    children.push_back(Fork([&] {
      auto tier = Open();
      const auto chain = Chain(100, 10 + writer);
      for (size_t i = 0; i < chain.size(); ++i) {
        // Who makes room may be kept waiting, and with it everybody.
        if (!Eventually([&] { return Put(*tier, chain, i).has_value(); })) return false;
        if (i % 10 == 9) std::this_thread::sleep_for(std::chrono::milliseconds(60));
      }
      // Until the others, too, have been heard of.
      return Eventually([&] { return tier->Stats().bytes <= options_.capacity_bytes; });
    }));
  }
  Go();
  uint64_t most = 0;
  for (int looks = 0; looks < 50; ++looks) {
    most = std::max(most, BytesOnDisk());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  for (const pid_t child : children) Join(child);
  EXPECT_GT(most, options_.capacity_bytes / 2) << "the writers wrote";
  auto tier = Open();
  EXPECT_TRUE(Eventually([&] { return BytesOnDisk() <= options_.capacity_bytes; }));
}

TEST_F(SharedStoreTest, OnlyTheHolderOfTheLockEvictsAndWhatWasLeftGoesLater) {
  options_.capacity_bytes = 4 * options_.layout.page_bytes();
  auto tier = Open();
  {
    auto lock = FileSystem::Real().TryLock(StoreDir(dir_.path()).LockPath());
    ASSERT_TRUE(lock && *lock);
    for (size_t i = 0; i < 8; ++i) ASSERT_TRUE(Put(*tier, chain_, i));
    EXPECT_EQ(tier->Stats().chunks, 8u);
    EXPECT_EQ(tier->Stats().evicted, 0u);
  }
  EXPECT_TRUE(Eventually([&] { return BytesOnDisk() <= options_.capacity_bytes; }))
      << "nobody writes any more";
}

TEST_F(SharedStoreTest, ARestartWithASmallerCapacityEvictsDownToIt) {
  {
    auto tier = Open();
    for (size_t i = 0; i < chain_.size(); ++i) ASSERT_TRUE(Put(*tier, chain_, i));
  }
  options_.capacity_bytes = 5 * options_.layout.page_bytes();
  options_.upkeep_interval = Seconds(3600);
  auto tier = Open();
  EXPECT_TRUE(Eventually([&] { return tier->Stats().chunks == 5; }));
  EXPECT_EQ(BytesOnDisk(), options_.capacity_bytes);
}

TEST_F(SharedStoreTest, WhatNobodyUsesForLongIsRemoved) {
  const int64_t now_s = UnixSeconds();
  {
    auto tier = Open();
    for (size_t i = 0; i < 6; ++i) ASSERT_TRUE(Put(*tier, chain_, i));
  }
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(FileSystem::Real().Touch(PathOf(chain_[i]), now_s - 1000));
  }
  options_.time_to_live = Seconds(2000);
  { EXPECT_EQ(Open()->Stats().chunks, 6u); }
  options_.time_to_live = Seconds(500);
  {
    auto tier = Open();  // what is too old is not served, from the start
    EXPECT_EQ(tier->Stats().chunks, 2u);
    EXPECT_EQ(Held(*tier, chain_)[0], false);
    EXPECT_EQ(BytesOnDisk(), 2 * options_.layout.page_bytes());
    // Nor later: upkeep looks for it.
    ASSERT_TRUE(FileSystem::Real().Touch(PathOf(chain_[4]), now_s - 1000));
  }
  options_.rescan_interval = Seconds(0);
  auto tier = Open();
  EXPECT_TRUE(Eventually([&] { return tier->Stats().chunks == 1; }));
  EXPECT_TRUE(tier->Residency(chain_)[5]);
}

TEST_F(SharedStoreTest, AUseRenewsTheTimeToLive) {
  options_.time_to_live = Seconds(1000);
  {
    auto tier = Open();
    for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(Put(*tier, chain_, i));
  }
  const int64_t now_s = UnixSeconds();
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(FileSystem::Real().Touch(PathOf(chain_[i]), now_s - 900));
  }
  auto tier = Open();
  tier->Pin(std::span(chain_).first(1));
  tier->Unpin(std::span(chain_).first(1));
  EXPECT_TRUE(
      Eventually([&] { return FileSystem::Real().Stat(PathOf(chain_[0]))->mtime_s >= now_s - 1; }));
  EXPECT_LT(FileSystem::Real().Stat(PathOf(chain_[1]))->mtime_s, now_s - 800);
}

// A network mount that hangs: whoever asks goes on.
class HungFileSystem : public FaultyFileSystem {
 public:
  HungFileSystem() : FaultyFileSystem(FileSystem::Real(), 1) {}
  std::atomic<bool> hung{false};
  std::atomic<int> stats{0};

  Result<FileInfo> Stat(const std::string& path) override {
    ++stats;
    hung.wait(true);
    return FaultyFileSystem::Stat(path);
  }
  Result<std::vector<DirEntry>> List(const std::string& path) override {
    hung.wait(true);
    return FaultyFileSystem::List(path);
  }
  void Release() {
    hung = false;
    hung.notify_all();
  }
};

TEST_F(SharedStoreTest, WhatHasExpiredIsNotFound) {
  ASSERT_TRUE(Put(*Open(), chain_, 0));
  options_.time_to_live = Seconds(1000);
  options_.upkeep_interval = Seconds(3600);
  const auto tier = Open(), other = Open();
  ASSERT_TRUE(Put(*other, chain_, 1));
  ASSERT_TRUE(Put(*other, chain_, 2));
  ASSERT_TRUE(FileSystem::Real().Touch(PathOf(chain_[1]), UnixSeconds() - 2000));
  EXPECT_EQ(Held(*tier, {chain_[0], chain_[1], chain_[2]}), (std::vector<bool>{true, false, true}));
}

TEST_F(SharedStoreTest, TimesOfUseAreAsFineAsAShortTimeToLiveNeedsThem) {
  options_.time_to_live = Seconds(400);
  auto tier = Open();
  ASSERT_TRUE(Put(*tier, chain_, 0));
  const int64_t before_s = UnixSeconds() - 150;
  ASSERT_TRUE(FileSystem::Real().Touch(PathOf(chain_[0]), before_s));
  tier.reset();
  tier = Open();
  tier->Pin(std::span(chain_).first(1));
  tier->Unpin(std::span(chain_).first(1));
  EXPECT_TRUE(
      Eventually([&] { return FileSystem::Real().Stat(PathOf(chain_[0]))->mtime_s > before_s; }));
}

TEST_F(SharedStoreTest, ADirectoryThatHangsBlocksNobodyWhoOnlyAsks) {
  HungFileSystem fs;
  auto tier = Open(fs);
  for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(Put(*tier, chain_, i));
  fs.stats = 0;
  fs.hung = true;
  std::atomic<size_t> heard{0};
  // Each of these returns although no file can be looked at.
  EXPECT_TRUE(tier->Residency(chain_)[2]);
  EXPECT_TRUE(tier->Look({.keys = chain_, .found = [&](size_t, const std::vector<bool>& held) {
                            heard += held.size();
                            return true;
                          }}));
  tier->Pin(chain_);
  tier->Unpin(chain_);
  EXPECT_EQ(tier->Stats().chunks, 3u);
  EXPECT_TRUE(Eventually([&] { return fs.stats > 0; }));
  EXPECT_LE(heard, 3u) << "what was put is known without a look";
  fs.Release();
  EXPECT_TRUE(Eventually([&] { return heard == chain_.size(); }));
}

TEST_F(SharedStoreTest, WhoWantsToKnowNoMoreIsNotTold) {
  HungFileSystem fs;
  auto tier = Open(fs);
  const auto keys = Chain(4000, 3);
  std::atomic<int> calls{0};
  ASSERT_TRUE(tier->Look({.keys = keys, .found = [&](size_t, const std::vector<bool>&) {
                            ++calls;
                            return false;
                          }}));
  EXPECT_TRUE(Eventually([&] { return calls > 0; }));
  tier.reset();  // ends when there is nothing left to tell
  EXPECT_EQ(calls, 1);
}

TEST_F(SharedStoreTest, WhoKeepsTheLockDoesNotUndoTheCapacity) {
  options_.capacity_bytes = 4 * options_.layout.page_bytes();
  auto tier = Open();
  auto lock = FileSystem::Real().TryLock(StoreDir(dir_.path()).LockPath());
  ASSERT_TRUE(lock && *lock);
  const auto chain = Chain(15);
  int refused = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    const auto status = Put(*tier, chain, i);
    refused += !status;
    if (!status) {
      EXPECT_NE(status.error().message.find("lock"), std::string::npos);
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_LE(BytesOnDisk(), options_.capacity_bytes + 9 * options_.layout.page_bytes());
  lock->reset();
  EXPECT_TRUE(Put(*tier, chain, 14));
  EXPECT_TRUE(Eventually([&] { return BytesOnDisk() <= options_.capacity_bytes; }));
}

// A time beyond those that the catalogue keeps, as a broken clock gives.
TEST_F(SharedStoreTest, AFileOfTheFarFutureIsEvictedLikeAnyOther) {
  options_.capacity_bytes = 4 * options_.layout.page_bytes();
  const int64_t far_s = int64_t{1} << 33;
  {
    auto tier = Open();
    for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(Put(*tier, chain_, i));
  }
  for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(FileSystem::Real().Touch(PathOf(chain_[i]), far_s));
  if (FileSystem::Real().Stat(PathOf(chain_[0]))->mtime_s != far_s) {
    GTEST_SKIP() << "this file system keeps no such times";
  }
  auto tier = Open();
  for (size_t i = 4; i < 10; ++i) EXPECT_TRUE(Put(*tier, chain_, i));
  EXPECT_LE(BytesOnDisk(), options_.capacity_bytes);
}

TEST_F(SharedStoreTest, AFileOfTheFutureIsSetBackByWhoComesAcrossIt) {
  options_.upkeep_interval = kPatience;  // no scan does
  auto other = Open(), tier = Open();
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(Put(*other, chain_, i));
    ASSERT_TRUE(FileSystem::Real().Touch(PathOf(chain_[i]), UnixSeconds() + 1000000));
  }
  EXPECT_TRUE(Held(*tier, {chain_[0]})[0]);
  EXPECT_EQ(ClaimKey(*tier, chain_[1]), ClaimState::kStored);
  EXPECT_TRUE(Put(*tier, chain_, 2));
  EXPECT_EQ(tier->Stats().writes_found, 1u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LE(FileSystem::Real().Stat(PathOf(chain_[i]))->mtime_s, UnixSeconds()) << i;
  }
}

TEST_F(SharedStoreTest, ADirectoryThatIsRemovedIsNoticedAtOnce) {
  options_.capacity_bytes = 4 * options_.layout.page_bytes();
  auto tier = Open();
  for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(Put(*tier, chain_, i));
  stdfs::remove_all(StoreDir(dir_.path()).Base());
  EXPECT_TRUE(Put(*tier, chain_, 4)) << "though it was full";
  EXPECT_TRUE(Eventually([&] { return tier->Stats().chunks == 1; }));
  // And by a tier that only reads.
  stdfs::remove_all(StoreDir(dir_.path()).RootDir(Root()));
  EXPECT_TRUE(Eventually([&] { return tier->Stats().chunks == 0; }));
}

// What is behind a link would never be counted, nor evicted.
TEST_F(SharedStoreTest, NothingIsWrittenThroughALink) {
  TempDir elsewhere;
  const StoreDir store(dir_.path());
  auto tier = Open();
  stdfs::create_directory_symlink(elsewhere.path(), store.ShardDir({Root(), chain_[0]}));
  const auto shard = Put(*tier, chain_, 0);
  ASSERT_FALSE(shard);
  EXPECT_NE(shard.error().message.find("link"), std::string::npos);
  tier.reset();
  stdfs::remove_all(store.RootDir(Root()));
  stdfs::create_directory_symlink(elsewhere.path(), store.RootDir(Root()));
  tier = Open();
  EXPECT_FALSE(Put(*tier, chain_, 1));
  EXPECT_TRUE(stdfs::is_empty(elsewhere.path()));
}

class UnremovableFileSystem : public FaultyFileSystem {
 public:
  UnremovableFileSystem() : FaultyFileSystem(FileSystem::Real(), 1) {}
  Status Remove(const std::string& path) override {
    return tl::unexpected(ErrnoError(EPERM, "remove", path));
  }
};

TEST_F(SharedStoreTest, WhereNothingCanBeRemovedRoomIsNotTriedForWithEveryFile) {
  constexpr size_t kFiles = 200;
  UnremovableFileSystem fs;
  options_.upkeep_interval = Seconds(3600);
  options_.direct = false;  // no trial, whose file would stay
  options_.capacity_bytes = kFiles * options_.layout.page_bytes();
  auto tier = Open(fs);
  const auto chain = Chain(kFiles + 1);
  for (size_t i = 0; i < kFiles; ++i) ASSERT_TRUE(Put(*tier, chain, i));
  const auto status = Put(*tier, chain, kFiles);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  EXPECT_GT(tier->Stats().evictions_failed, 0u);
  EXPECT_LT(tier->Stats().evictions_failed, kFiles / 2);
  EXPECT_EQ(tier->Stats().chunks, kFiles);
  // Pins cost nothing to find out: however many there are, what is not pinned makes room.
  tier.reset();
  tier = Open();
  tier->Pin(std::span(chain).first(kFiles - 1));
  EXPECT_TRUE(Put(*tier, chain, kFiles));
  EXPECT_EQ(tier->Stats().evicted, 1u);
  EXPECT_FALSE(tier->Residency(chain)[kFiles - 1]);
}

}  // namespace
}  // namespace kvcake
