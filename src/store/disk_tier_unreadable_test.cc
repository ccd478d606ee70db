// Files that cannot be read, on a device that answers: they are written anew.
#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "base/mutex.h"
#include "io/faulty_file_system_testing.h"
#include "kv/page_copier_testing.h"
#include "store/disk_tier.h"
#include "store/staged_tier.h"
#include "store/store_dir.h"
#include "store/tier_testing.h"
#include "store/write_behind.h"

namespace kvcake {
namespace {

using namespace testing_util;

// Files that say EIO, until others have their names.
class BadFilesFileSystem : public FaultyFileSystem {
 public:
  BadFilesFileSystem() : FaultyFileSystem(FileSystem::Real(), 1) {}
  void SetBad(std::set<std::string> paths) {
    MutexLock lock(mutex_);
    bad_ = std::move(paths);
  }

  Result<std::unique_ptr<File>> OpenRead(const std::string& path, bool direct) override {
    {
      MutexLock lock(mutex_);
      if (bad_.contains(path)) return tl::unexpected(ErrnoError(EIO, "open", path));
    }
    return FaultyFileSystem::OpenRead(path, direct);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    {
      MutexLock lock(mutex_);
      bad_.erase(to);
    }
    return FaultyFileSystem::Rename(from, to);
  }

 private:
  Mutex mutex_;
  std::set<std::string> bad_ GUARDED_BY(mutex_);
};

class UnreadableFileTest : public testing::Test {
 protected:
  UnreadableFileTest() {
    options_.dir = dir_.path();
    options_.layout = SmallLayout();
    options_.root = Root();
    options_.missing_ttl = Seconds(0);
    options_.failures_max = 3;
    options_.probe_interval = Seconds(0.01);
    tier_ = DiskTier::Open(options_, fs_).value();
    for (size_t i = 0; i < chain_.size(); ++i) EXPECT_TRUE(Put(i));
  }
  Status Put(size_t i) { return PutChunk(*tier_, options_.layout, chain_[i], ParentOf(chain_, i)); }
  std::optional<ErrorCode> Read(size_t i) {
    return ReadBack(*tier_, options_.layout, chain_[i], ParentOf(chain_, i));
  }
  // As a prompt does that has it computed.
  void UseChunk(Tier& tier, size_t i) {
    const auto pool = PagePool::Create(options_.layout, 4 * options_.layout.page_bytes()).value();
    WriteBehind writes({&tier}, *pool);
    PageHandle page = *pool->Draw();
    FillPage(chain_[i], {pool->Data(page.id()), options_.layout.page_bytes()});
    page = pool->Publish(std::move(page), chain_[i], NumericPath::kF32);
    writes.Offer(
        {chain_[i], ParentOf(chain_, i), static_cast<int>(i), NumericPath::kF32, std::move(page)});
    EXPECT_TRUE(writes.Flush());
  }
  std::string PathOf(size_t i) { return StoreDir(options_.dir).ChunkPath({Root(), chain_[i]}); }

  TempDir dir_;
  BadFilesFileSystem fs_;
  DiskTierOptions options_;
  const std::vector<ChunkKey> chain_ = Chain(6);
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(UnreadableFileTest, IsWrittenAnew) {
  fs_.SetBad({PathOf(2)});
  EXPECT_EQ(Read(2), ErrorCode::kIo);
  ASSERT_TRUE(Put(2));
  EXPECT_EQ(Read(2), std::nullopt);
  EXPECT_EQ(tier_->Stats().writes, chain_.size() + 1);
  ASSERT_TRUE(Put(2));
  EXPECT_EQ(tier_->Stats().writes, chain_.size() + 1) << "the new file is as good as any";
}

TEST_F(UnreadableFileTest, OneOfManyDoesNotCloseTheStoreForLong) {
  fs_.SetBad({PathOf(0), PathOf(1)});  // the coldest, too
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Read(1), ErrorCode::kIo);
  EXPECT_TRUE(Eventually([&] { return Read(3) == std::nullopt; }));
}

// A scan finds it again, as does who looks for it: it is no better for that.
TEST_F(UnreadableFileTest, IsWrittenAnewThoughItIsFoundAgain) {
  fs_.SetBad({PathOf(2), PathOf(4)});
  for (const size_t i : {2, 4}) EXPECT_EQ(Read(i), ErrorCode::kIo);
  EXPECT_EQ(Held(*tier_, chain_), std::vector<bool>(chain_.size(), true));
  EXPECT_FALSE(tier_->Keeps(chain_[2]));
  UseChunk(*tier_, 2);
  EXPECT_EQ(Read(2), std::nullopt);
  EXPECT_TRUE(tier_->Keeps(chain_[2]));
  FakeCopier copier(0);
  const StagedTierOptions staged{.read_slots = 1, .write_slots = 1, .layout = options_.layout};
  PageBuffer staging(KvLayout::OfBytes(1, staged.staging_bytes(), 16));
  StagedTier decorated(std::move(tier_), copier, staging.span(), staged);
  UseChunk(decorated, 4);
  EXPECT_EQ(ReadBack(decorated, options_.layout, chain_[4], chain_[3]), std::nullopt);
}

TEST_F(UnreadableFileTest, WhatIsReadAfterAllIsNotWrittenAnew) {
  fs_.SetBad({PathOf(2)});
  EXPECT_EQ(Read(2), ErrorCode::kIo);
  fs_.SetBad({});
  EXPECT_EQ(Read(2), std::nullopt);
  ASSERT_TRUE(Put(2));
  EXPECT_EQ(tier_->Stats().writes, chain_.size());
}

// Every file there is has gone bad; what is written anew is what probes find.
TEST_F(UnreadableFileTest, AllOfThemAreWrittenAnew) {
  std::set<std::string> all;
  for (size_t i = 0; i < chain_.size(); ++i) all.insert(PathOf(i));
  fs_.SetBad(all);
  for (size_t i = 0; i < chain_.size(); ++i) EXPECT_EQ(Read(i), ErrorCode::kIo);
  EXPECT_EQ(tier_->Residency(chain_), std::vector<bool>(chain_.size()));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(Put(i));
  EXPECT_TRUE(Eventually([&] { return Read(0) == std::nullopt; }));
}

// Nor do those that are not ours to read.
TEST_F(UnreadableFileTest, PermissionsAreNotTheDevicesFault) {
  fs_.Set({.open_error = 1, .read_errno = EACCES});
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(Read(i), ErrorCode::kIo);
  }
  fs_.Set({.open_error = 1, .read_errno = EMFILE});
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(Read(i), ErrorCode::kIo);
  fs_.Set({});
  EXPECT_EQ(Read(5), std::nullopt) << "at once: nothing was closed";
}

}  // namespace
}  // namespace kvcake
