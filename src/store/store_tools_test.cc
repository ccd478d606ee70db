#include "store/store_tools.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/mutex.h"
#include "io/faulty_file_system_testing.h"
#include "store/disk_testing.h"
#include "store/disk_tier.h"
#include "store/quarantine.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
namespace stdfs = std::filesystem;

class StoreToolsTest : public testing::Test {
 protected:
  StoreToolsTest() {
    DiskTierOptions options;
    options.dir = dir_.path();
    options.layout = SmallLayout();
    options.root = Root();
    auto tier = DiskTier::Open(options).value();
    for (size_t i = 0; i < chain_.size(); ++i) {
      EXPECT_TRUE(PutChunk(*tier, SmallLayout(), chain_[i], ParentOf(chain_, i)));
    }
    tier.reset();
    for (size_t i = 0; i < chain_.size(); ++i) {  // the last was used last
      EXPECT_TRUE(FileSystem::Real().Touch(PathOf(i), 1000000 + static_cast<int64_t>(i)));
    }
  }
  std::string PathOf(size_t i) const { return store_.ChunkPath({Root(), chain_[i]}); }
  // Every name, and when what is below it changed.
  std::map<std::string, stdfs::file_time_type> Tree() const {
    std::map<std::string, stdfs::file_time_type> tree;
    for (const auto& entry : stdfs::recursive_directory_iterator(dir_.path())) {
      tree.emplace(entry.path(), stdfs::last_write_time(entry));
    }
    return tree;
  }

  TempDir dir_;
  const StoreDir store_{dir_.path()};
  const std::vector<ChunkKey> chain_ = Chain(6);
};

TEST_F(StoreToolsTest, VerifyingWritesNothing) {
  FaultyFileSystem fs(FileSystem::Real(), 1);
  fs.Set({.change_error = 1});
  const auto before = Tree();
  const auto verified = VerifyStore(dir_.path(), {}, fs);
  ASSERT_TRUE(verified) << verified.error().message;
  EXPECT_EQ(verified->chunks, chain_.size());
  EXPECT_TRUE(verified->bad.empty());
  EXPECT_EQ(fs.faults(), 0u);
  EXPECT_EQ(Tree(), before);
}

TEST_F(StoreToolsTest, WhereDirectReadsAreRefusedTheCacheServes) {
  FaultyFileSystem fs(FileSystem::Real(), 1);
  fs.Set({.direct_error = 1});
  VerifyOptions options;
  options.threads = 2;
  const auto verified = VerifyStore(dir_.path(), options, fs);
  ASSERT_TRUE(verified);
  EXPECT_EQ(verified->chunks, chain_.size());
  EXPECT_GT(fs.faults(), 0u);
  EXPECT_LE(fs.faults(), 2u) << "each thread finds out once";
}

// Counts what is read of each file.
class CountingFileSystem : public FaultyFileSystem {
 public:
  CountingFileSystem() : FaultyFileSystem(FileSystem::Real(), 1) {}
  uint64_t bytes_of(const std::string& path) {
    MutexLock lock(mutex_);
    return bytes_[path];
  }
  Result<std::unique_ptr<File>> OpenRead(const std::string& path, bool direct) override {
    ASSIGN_OR_RETURN(auto file, FaultyFileSystem::OpenRead(path, direct));
    return std::make_unique<CountingFile>(*this, std::move(file));
  }

 private:
  class CountingFile : public File {
   public:
    CountingFile(CountingFileSystem& fs, std::unique_ptr<File> inner)
        : fs_(fs), inner_(std::move(inner)) {}
    Result<size_t> ReadAt(std::span<std::byte> buffer, uint64_t offset) override {
      ASSIGN_OR_RETURN(const size_t n, inner_->ReadAt(buffer, offset));
      MutexLock lock(fs_.mutex_);
      fs_.bytes_[path()] += n;
      return n;
    }
    Result<size_t> WriteAt(std::span<const std::span<const std::byte>> buffers,
                           uint64_t offset) override {
      return inner_->WriteAt(buffers, offset);
    }
    Result<FileInfo> Info() override { return inner_->Info(); }
    Status Sync() override { return inner_->Sync(); }
    Status Close() override { return inner_->Close(); }
    Status SetAttribute(const char* name, std::string_view value) override {
      return inner_->SetAttribute(name, value);
    }
    int fd() const override { return inner_->fd(); }
    bool direct() const override { return inner_->direct(); }
    const std::string& path() const override { return inner_->path(); }

   private:
    CountingFileSystem& fs_;
    const std::unique_ptr<File> inner_;
  };

  Mutex mutex_;
  std::map<std::string, uint64_t> bytes_ GUARDED_BY(mutex_);
};

// Someone else's file of three gibibytes (sparse) is not read, and no memory taken for it.
TEST_F(StoreToolsTest, OfALargeForeignFileOnlyTheHeaderIsRead) {
  std::ofstream(PathOf(0)) << "not a chunk";
  stdfs::resize_file(PathOf(0), 3ull << 30);
  stdfs::resize_file(PathOf(1), 3ull << 30);  // its header is right, but names another size
  CountingFileSystem fs;
  const auto verified = VerifyStore(dir_.path(), {}, fs);
  ASSERT_TRUE(verified);
  EXPECT_EQ(verified->chunks, chain_.size() - 2);
  ASSERT_EQ(verified->bad.size(), 2u);
  for (const BadFile& bad : verified->bad) {
    EXPECT_NE(bad.reason.find(bad.path == PathOf(0) ? "magic" : "must have"), std::string::npos)
        << bad.reason;
    EXPECT_LE(fs.bytes_of(bad.path), kPageHeaderBytes);
  }
  EXPECT_EQ(fs.bytes_of(PathOf(2)), SmallLayout().page_bytes()) << "read once";
}

TEST_F(StoreToolsTest, TheQuarantineIsListedWithoutReadingIt) {
  std::fstream(PathOf(3), std::ios::in | std::ios::out).seekp(5000).put('!');
  VerifyOptions options;
  options.quarantine = true;
  ASSERT_EQ(VerifyStore(dir_.path(), options)->bad.size(), 1u);
  FaultyFileSystem fs(FileSystem::Real(), 1);
  fs.Set({.open_error = 1});
  const auto files = ListQuarantine(dir_.path(), fs);
  ASSERT_TRUE(files);
  ASSERT_EQ(files->size(), 1u);
  EXPECT_EQ((*files)[0].bytes, SmallLayout().page_bytes());
  EXPECT_NE(WhyQuarantined((*files)[0]).find("checksum"), std::string::npos);
  const auto cleared = ClearQuarantine(dir_.path(), fs);
  ASSERT_TRUE(cleared);
  EXPECT_EQ(cleared->files, 1u);
  EXPECT_EQ(fs.faults(), 0u);
  EXPECT_FALSE(stdfs::exists(store_.QuarantineDir()));
}

TEST_F(StoreToolsTest, ClearingTheQuarantineGoesOnAfterADirectoryThatHoldsSomething) {
  const std::string full = store_.QuarantineDir() + "/aaa";
  stdfs::create_directories(full + "/of");
  stdfs::create_directories(store_.QuarantineDir() + "/empty");
  std::ofstream(store_.QuarantineDir() + "/zzz") << "bad";
  const auto status = ClearQuarantine(dir_.path());
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find(full), std::string::npos);
  ASSERT_EQ(ListQuarantine(dir_.path())->size(), 1u);
  EXPECT_TRUE(stdfs::exists(full + "/of"));
}

TEST_F(StoreToolsTest, AQuarantineBehindALinkIsNotCleared) {
  const TempDir elsewhere;
  const std::string theirs = elsewhere.path() + "/theirs.txt";
  std::ofstream(theirs) << "theirs";
  stdfs::create_symlink(elsewhere.path(), store_.QuarantineDir());
  const auto cleared = ClearQuarantine(dir_.path());
  ASSERT_FALSE(cleared);
  EXPECT_EQ(cleared.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(cleared.error().message.find(store_.QuarantineDir()), std::string::npos);
  EXPECT_TRUE(stdfs::exists(theirs));
}

// Another process uses a chunk as soon as the first is removed.
class UsedMeanwhileFileSystem : public FaultyFileSystem {
 public:
  explicit UsedMeanwhileFileSystem(std::string used)
      : FaultyFileSystem(FileSystem::Real(), 1), used_(std::move(used)) {}
  Status Remove(const std::string& path) override {
    EXPECT_TRUE(Touch(used_, UnixSeconds()));
    return FaultyFileSystem::Remove(path);
  }
  Result<std::vector<DirEntry>> List(const std::string& path) override {
    EXPECT_TRUE(locked) << "what is found before the lock is taken may be gone, or used, by then";
    return FaultyFileSystem::List(path);
  }
  Result<std::unique_ptr<FileLock>> TryLock(const std::string& path) override {
    locked = true;
    return FaultyFileSystem::TryLock(path);
  }
  bool locked = false;

 private:
  const std::string used_;
};

TEST_F(StoreToolsTest, WhatIsUsedMeanwhileIsNotEvicted) {
  UsedMeanwhileFileSystem fs(PathOf(1));
  EvictRule rule;
  rule.to_bytes = 3 * SmallLayout().page_bytes();
  const auto evicted = EvictStore(dir_.path(), rule, fs);
  ASSERT_TRUE(evicted) << evicted.error().message;
  EXPECT_EQ(evicted->files, 3u);
  for (size_t i = 0; i < chain_.size(); ++i) {
    EXPECT_EQ(stdfs::exists(PathOf(i)), i == 1 || i >= 4) << i;
  }
}

// One of its directories cannot be listed.
class UnlistedFileSystem : public FaultyFileSystem {
 public:
  explicit UnlistedFileSystem(std::string dir)
      : FaultyFileSystem(FileSystem::Real(), 1), dir_(std::move(dir)) {}
  Result<std::vector<DirEntry>> List(const std::string& path) override {
    if (path == dir_) return Fail(ErrorCode::kIo, "cannot list {}", path);
    return FaultyFileSystem::List(path);
  }

 private:
  const std::string dir_;
};

TEST_F(StoreToolsTest, ADirectoryThatCannotBeListedIsBadAndTheOthersAreVerified) {
  const std::string dir = store_.ShardDir({Root(), chain_[0]});
  UnlistedFileSystem fs(dir);
  const auto verified = VerifyStore(dir_.path(), {}, fs);
  ASSERT_TRUE(verified) << verified.error().message;
  EXPECT_EQ(verified->chunks, chain_.size() - 1);
  ASSERT_EQ(verified->bad.size(), 1u);
  EXPECT_EQ(verified->bad[0].path, store_.Base());
  EXPECT_NE(verified->bad[0].reason.find(dir), std::string::npos);
}

TEST_F(StoreToolsTest, EvictionGoesOnAfterADirectoryThatCannotBeListed) {
  const std::string dir = store_.ShardDir({Root(), chain_[0]});
  UnlistedFileSystem fs(dir);
  const auto evicted = EvictStore(dir_.path(), {.to_bytes = 0}, fs);
  ASSERT_FALSE(evicted);
  EXPECT_NE(evicted.error().message.find(dir), std::string::npos);
  for (size_t i = 0; i < chain_.size(); ++i) EXPECT_EQ(stdfs::exists(PathOf(i)), i == 0) << i;
}

TEST_F(StoreToolsTest, WhatHasGoneMeanwhileMakesRoomAndWasNotEvicted) {
  HookedFileSystem fs;
  fs.before_remove = [&](const std::string& path) {
    if (path == PathOf(0)) stdfs::remove(path);
  };
  const auto evicted = EvictStore(dir_.path(), {.to_bytes = 3 * SmallLayout().page_bytes()}, fs);
  ASSERT_TRUE(evicted) << evicted.error().message;
  EXPECT_EQ(evicted->files, 2u);
  EXPECT_EQ(evicted->bytes, 2 * SmallLayout().page_bytes());
  for (size_t i = 0; i < chain_.size(); ++i) EXPECT_EQ(stdfs::exists(PathOf(i)), i >= 3) << i;
}

TEST_F(StoreToolsTest, EvictionGoesOnAfterAFileThatCannotBeRemovedAndSaysSo) {
  HookedFileSystem fs;
  fs.before_remove = [&](const std::string& path) {
    fs.Set({.change_error = path == PathOf(0) ? 1.0 : 0.0});
  };
  const auto evicted = EvictStore(dir_.path(), {.to_bytes = 0}, fs);
  ASSERT_FALSE(evicted);
  EXPECT_NE(evicted.error().message.find(PathOf(0)), std::string::npos);
  for (size_t i = 0; i < chain_.size(); ++i) EXPECT_EQ(stdfs::exists(PathOf(i)), i == 0) << i;
}

TEST_F(StoreToolsTest, WhatWasUsedAtThatVerySecondIsNotEvicted) {
  ASSERT_EQ(EvictStore(dir_.path(), {.used_before_s = 1000002})->files, 2u);
  for (size_t i = 0; i < chain_.size(); ++i) EXPECT_EQ(stdfs::exists(PathOf(i)), i >= 2) << i;
}

// A device that cannot be read says nothing about the chunks.
TEST_F(StoreToolsTest, WhatCannotBeReadIsBadAndStaysWhereItIs) {
  FaultyFileSystem fs(FileSystem::Real(), 1);
  fs.Set({.read_error = 1});
  const auto verified = VerifyStore(dir_.path(), {.quarantine = true}, fs);
  ASSERT_TRUE(verified) << verified.error().message;
  EXPECT_EQ(verified->bad.size(), chain_.size());
  for (size_t i = 0; i < chain_.size(); ++i) EXPECT_TRUE(stdfs::exists(PathOf(i))) << i;
}

TEST_F(StoreToolsTest, ABadFileThatCannotBeMovedAwayIsSaidToStay) {
  std::ofstream(PathOf(0)) << "not a chunk";
  FaultyFileSystem fs(FileSystem::Real(), 1);
  fs.Set({.rename_error = 1});
  const auto verified = VerifyStore(dir_.path(), {.quarantine = true}, fs);
  ASSERT_EQ(verified.value().bad.size(), 1u);
  EXPECT_NE(verified->bad[0].reason.find("could not be moved away"), std::string::npos);
  EXPECT_TRUE(stdfs::exists(PathOf(0)));
}

TEST_F(StoreToolsTest, WhatHasGoneBeforeItIsReadIsNotBad) {
  HookedFileSystem fs;
  fs.after_list = [&](const std::string& path) {
    if (path == store_.ShardDir({Root(), chain_[0]})) stdfs::remove(PathOf(0));
  };
  const auto verified = VerifyStore(dir_.path(), {}, fs);
  ASSERT_TRUE(verified) << verified.error().message;
  EXPECT_EQ(verified->chunks, chain_.size() - 1);
  EXPECT_TRUE(verified->bad.empty());
}

TEST_F(StoreToolsTest, TheQuarantineIsListedByAgeAndClearingItCountsWhatItRemoves) {
  stdfs::create_directories(store_.QuarantineDir());
  const std::string a = store_.QuarantineDir() + "/a", b = store_.QuarantineDir() + "/b",
                    gone = store_.QuarantineDir() + "/gone";
  std::ofstream(a) << "four";
  std::ofstream(b) << "seven..";
  std::ofstream(gone) << "another is faster";
  ASSERT_TRUE(FileSystem::Real().Touch(a, 2000000));
  ASSERT_TRUE(FileSystem::Real().Touch(b, 1000000));
  EXPECT_EQ(ListQuarantine(dir_.path())->at(0).path, b);
  EXPECT_EQ(ListQuarantine(dir_.path())->at(1).path, a);
  HookedFileSystem fs;
  fs.before_remove = [&](const std::string& path) {
    if (path == gone) stdfs::remove(path);
  };
  const auto cleared = ClearQuarantine(dir_.path(), fs);
  ASSERT_TRUE(cleared) << cleared.error().message;
  EXPECT_EQ(cleared->files, 2u);
  EXPECT_EQ(cleared->bytes, 4u + 7u);
}

TEST_F(StoreToolsTest, AQuarantineThatCannotBeListedIsNotTakenForAnEmptyOne) {
  FaultyFileSystem fs(FileSystem::Real(), 1);
  fs.Set({.list_error = 1});
  EXPECT_EQ(ListQuarantine(dir_.path(), fs).error().code, ErrorCode::kIo);
  EXPECT_FALSE(ClearQuarantine(dir_.path(), fs));
}

TEST_F(StoreToolsTest, OnlyTheHolderOfTheLockEvicts) {
  const auto lock = FileSystem::Real().TryLock(store_.LockPath()).value();
  ASSERT_TRUE(lock);
  const auto evicted = EvictStore(dir_.path(), {}, FileSystem::Real(), Seconds(0));
  EXPECT_EQ(evicted.error().code, ErrorCode::kIo);
  EXPECT_TRUE(stdfs::exists(PathOf(0)));
}

// A server holds the lock, and gives it back once it was asked for in vain.
class BusyFileSystem : public FaultyFileSystem {
 public:
  explicit BusyFileSystem(const std::string& lock)
      : FaultyFileSystem(FileSystem::Real(), 1), held_(FileSystem::Real().TryLock(lock).value()) {}
  Result<std::unique_ptr<FileLock>> TryLock(const std::string& path) override {
    auto lock = FaultyFileSystem::TryLock(path);
    refused += lock && !*lock;
    held_.reset();
    return lock;
  }
  int refused = 0;

 private:
  std::unique_ptr<FileLock> held_;
};

TEST_F(StoreToolsTest, WhoEvictsWaitsForAnotherWhoMakesRoom) {
  BusyFileSystem fs(store_.LockPath());
  const auto evicted = EvictStore(dir_.path(), {}, fs, Seconds(1000));
  ASSERT_TRUE(evicted) << evicted.error().message;
  EXPECT_EQ(fs.refused, 1);
  EXPECT_EQ(evicted->files, chain_.size());
}

}  // namespace
}  // namespace kvcake
