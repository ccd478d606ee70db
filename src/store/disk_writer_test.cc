// The writer without a tier: which calls it makes of the file system, in which order, and what is
// left where one fails.
#include "store/disk_writer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/mutex.h"
#include "io/faulty_file_system_testing.h"
#include "store/disk_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
namespace stdfs = std::filesystem;

// Writes down what makes names and what makes them durable, by the last part of the path; the
// number of a temporary is left out.
class RecordingFileSystem : public FaultyFileSystem {
 public:
  RecordingFileSystem() : FaultyFileSystem(FileSystem::Real(), 1) {}

  Result<std::unique_ptr<File>> Create(const std::string& path, bool direct) override {
    Note("create", path);
    return FaultyFileSystem::Create(path, direct);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    Note("rename", to);
    return FaultyFileSystem::Rename(from, to);
  }
  Status SyncDir(const std::string& path) override {
    Note("sync", path);
    return FaultyFileSystem::SyncDir(path);
  }
  Status Remove(const std::string& path) override {
    Note("remove", path);
    if (full_until_removed && path.find(".tmp.") == std::string::npos) Set({});
    return FaultyFileSystem::Remove(path);
  }
  Status MakeDirs(const std::string& path) override {
    const Status status = FaultyFileSystem::MakeDirs(path);
    const bool is_shard = path.size() - path.rfind('/') == 3;
    if (auto pause = is_shard ? std::exchange(after_make_shard, nullptr) : nullptr) pause();
    return status;
  }
  Status SpreadSubdirs(const std::string& path) override {
    Note("spread", path);
    return FaultyFileSystem::SpreadSubdirs(path);
  }
  std::vector<std::string> Take() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return std::exchange(calls_, {});
  }

  // Called once, before MakeDirs of a shard returns: the directories are there and not durable.
  std::function<void()> after_make_shard;
  bool full_until_removed = false;  // faults end when a chunk is removed

 private:
  void Note(const std::string& what, const std::string& path) EXCLUDES(mutex_) {
    std::string name = path.substr(path.rfind('/') + 1);
    if (const size_t at = name.find(".tmp."); at != std::string::npos)
      name = name.substr(0, at + 4);
    MutexLock lock(mutex_);
    calls_.push_back(what + " " + name);
  }

  Mutex mutex_;
  std::vector<std::string> calls_ GUARDED_BY(mutex_);
};

class DiskWriterTest : public testing::Test {
 protected:
  void Open(bool durable = false) {
    DiskTierOptions options = SmallOptions(dir_.path());
    options.durable = durable;
    options.time_to_live = time_to_live_;
    options.description = "{}";
    writer_.reset();
    room_.reset();
    context_.emplace(options, fs_);
    room_.emplace(*context_);
    writer_.emplace(*context_, *room_);
    writer_->DescribeRoot();
    fs_.Take();
  }
  Status Put(const ChunkKey& key) {
    PageBuffer page(SmallLayout());
    FillPage(key, page.span());
    return writer_->Put({key, Root(), NumericPath::kF32Fma, page.span()});
  }
  TierStats Stats() {
    TierStats stats;
    writer_->AddStats(stats);
    return stats;
  }
  size_t FilesInShard(const ChunkKey& key) {
    const stdfs::path dir = context_->store.ShardDir(context_->IdOf(key));
    return stdfs::exists(dir) ? std::distance(stdfs::directory_iterator(dir), {}) : 0;
  }

  TempDir dir_;
  RecordingFileSystem fs_;
  Seconds time_to_live_{0};
  const ChunkKey key_ = Chain(1)[0];
  const std::string name_ = key_.Hex(), shard_ = name_.substr(0, 2);
  std::optional<DiskContext> context_;
  std::optional<DiskRoom> room_;
  std::optional<DiskWriter> writer_;
};

using Calls = std::vector<std::string>;

TEST_F(DiskWriterTest, AChunkGetsItsNameWhenItIsWholeAndIsKnownThen) {
  Open();
  ASSERT_TRUE(Put(key_));
  EXPECT_EQ(fs_.Take(), (Calls{"create " + name_ + ".tmp", "spread " + Root().Hex(),
                               "create " + name_ + ".tmp", "rename " + name_}))
      << "the first finds no directory";
  EXPECT_TRUE(context_->index.Contains(key_));
  EXPECT_EQ(context_->fs.Stat(context_->PathOf(key_))->bytes, context_->file_bytes_max());
  EXPECT_EQ(Stats().writes, 1u);
  EXPECT_EQ(Stats().write_bytes, context_->file_bytes_max());
  ASSERT_TRUE(Put(key_));
  EXPECT_EQ(fs_.Take(), Calls{}) << "it is there";
  EXPECT_EQ(Stats().writes, 1u);
}

TEST_F(DiskWriterTest, WhatHasGoneAndCannotBeWrittenAnewIsNotThere) {
  Open();
  ASSERT_TRUE(Put(key_));
  stdfs::remove(context_->PathOf(key_));
  fs_.Set({.write_error = 1});
  EXPECT_FALSE(Put(key_));
  EXPECT_FALSE(context_->index.Contains(key_));
}

TEST_F(DiskWriterTest, AFileThatCannotBeReadIsWrittenAnewAndThenIsLikeAnyOther) {
  Open();
  ASSERT_TRUE(Put(key_));
  context_->index.NoteUnreadable(key_);
  ASSERT_TRUE(Put(key_));
  ASSERT_TRUE(Put(key_));
  EXPECT_EQ(Stats().writes, 2u);
}

// What nobody has used for too long is not there, to who looks for it, and goes at the next chance:
// so would a chunk that was only just kept.
TEST_F(DiskWriterTest, AFileThatHasExpiredIsWrittenAnew) {
  time_to_live_ = Seconds(3600);
  Open();
  ASSERT_TRUE(Put(key_));
  const std::string path = context_->PathOf(key_);
  ASSERT_TRUE(fs_.Touch(path, UnixSeconds() - 7200));
  Open();  // another process, which has not seen the file yet
  ASSERT_TRUE(Put(key_));
  EXPECT_FALSE(context_->index.IsExpired(fs_.Stat(path)->mtime_s));
  EXPECT_EQ(Stats().writes, 1u);
  EXPECT_EQ(Stats().writes_found, 0u) << "nobody else has made it";
  room_->ScanFirst();
  room_->Expire();
  EXPECT_TRUE(context_->index.Contains(key_));
  EXPECT_TRUE(stdfs::exists(path));
}

TEST_F(DiskWriterTest, WhateverFailsLeavesNothingBehind) {
  Open(/*durable=*/true);
  ASSERT_TRUE(Put(Chain(1, 1)[0]));
  for (const FileFaults& faults :
       {FileFaults{.create_error = 1}, FileFaults{.write_error = 1}, FileFaults{.no_space = 1},
        FileFaults{.sync_error = 1}, FileFaults{.no_space_at_close = 1},
        FileFaults{.rename_error = 1}}) {
    const uint64_t failed = Stats().writes_failed;
    fs_.Set(faults);
    EXPECT_FALSE(Put(key_));
    EXPECT_EQ(Stats().writes_failed, failed + 1);
    EXPECT_FALSE(context_->index.Contains(key_));
    fs_.Set({});
    EXPECT_EQ(FilesInShard(key_), 0u);
  }
  EXPECT_TRUE(Put(key_));
}

// As NFS does, some tell only at the end that they are full.
TEST_F(DiskWriterTest, AFullDiskNamesWhatCanBeDone) {
  Open();
  for (const FileFaults& full : {FileFaults{.no_space = 1}, FileFaults{.no_space_at_close = 1}}) {
    fs_.Set(full);
    const auto status = Put(key_);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(status.error().message.find("lower --disk-capacity"), std::string::npos);
  }
}

TEST_F(DiskWriterTest, ANameIsDurableWhenTheDirectoriesDownToItAre) {
  Open(/*durable=*/true);
  ASSERT_TRUE(Put(key_));
  fs_.Take();  // the directories are made
  ChunkKey other = key_;
  other.digest[31] ^= 1;
  ASSERT_TRUE(Put(other));
  const std::string name = other.Hex();
  EXPECT_EQ(fs_.Take(), (Calls{"create " + name + ".tmp", "rename " + name, "sync " + shard_}))
      << "those above are durable";
  Open(/*durable=*/true);
  ASSERT_TRUE(Put(other));
  const std::string top = dir_.path().substr(dir_.path().rfind('/') + 1);
  EXPECT_EQ(fs_.Take(), (Calls{"sync " + shard_, "sync " + Root().Hex(), "sync v1", "sync " + top}))
      << "another process may have written it and not have said so yet";
}

TEST_F(DiskWriterTest, AStoreThatAnotherProcessClearedIsDescribedAnew) {
  Open();
  stdfs::remove_all(context_->store.Base());
  ASSERT_TRUE(Put(key_));
  EXPECT_EQ(ReadText(FileSystem::Real(), context_->store.ModelPath(Root()), 100), "{}");
}

TEST_F(DiskWriterTest, ADescriptionThatIsAnotherIsWrittenAnew) {
  Open();
  const std::string path = context_->store.ModelPath(Root());
  ASSERT_TRUE(WriteText(FileSystem::Real(), path, "??"));
  Open();
  EXPECT_EQ(ReadText(FileSystem::Real(), path, 100), "{}");
}

TEST_F(DiskWriterTest, WhatAnotherHasWrittenMeanwhileCountsAsMadeTwice) {
  Open();
  fs_.after_make_shard = [&] { std::thread([&] { EXPECT_TRUE(Put(key_)); }).join(); };
  ASSERT_TRUE(Put(key_));
  EXPECT_EQ(Stats().writes_found, 1u);
  EXPECT_EQ(FilesInShard(key_), 1u);
}

TEST_F(DiskWriterTest, WhileDirectoriesAreMadeAnewNobodyBelievesThemDurable) {
  Open(/*durable=*/true);
  ASSERT_TRUE(Put(key_));
  stdfs::remove_all(context_->store.Base());  // another process clears the store
  ChunkKey first = key_, second = key_;
  first.digest[31] ^= 1;
  second.digest[31] ^= 2;
  Calls of_second;
  fs_.after_make_shard = [&] {
    fs_.Take();
    std::thread([&] { EXPECT_TRUE(Put(second)); }).join();
    of_second = fs_.Take();
  };
  ASSERT_TRUE(Put(first));
  const std::string name = second.Hex();
  const std::string top = dir_.path().substr(dir_.path().rfind('/') + 1);
  EXPECT_EQ(of_second, (Calls{"create " + name + ".tmp", "rename " + name, "sync " + shard_,
                              "sync " + Root().Hex(), "sync v1", "sync " + top}));
}

TEST_F(DiskWriterTest, AFullFileSystemLosesWhatWasUsedLongestAgo) {
  Open();
  const auto chain = Chain(4);
  for (size_t i = 0; i < chain.size(); ++i) {
    ASSERT_TRUE(Put(chain[i]));
    const int64_t used_s = UnixSeconds() - 1000 + static_cast<int64_t>(i);
    ASSERT_TRUE(fs_.Touch(context_->PathOf(chain[i]), used_s));
  }
  Open();
  room_->ScanFirst();
  fs_.Set({.no_space = 1});
  fs_.full_until_removed = true;
  const ChunkKey fresh = Chain(1, 1)[0];
  ASSERT_TRUE(Put(fresh));
  EXPECT_TRUE(context_->index.Contains(fresh));
  EXPECT_EQ(context_->index.Contains(chain), (std::vector<bool>{false, true, true, true}));
}

TEST_F(DiskWriterTest, AFileSystemThatHasNoRoomForANameLosesWhatWasUsedLongestAgo) {
  Open();
  const auto chain = Chain(4);
  for (const ChunkKey& key : chain) ASSERT_TRUE(Put(key));
  fs_.Set({.create_error = 1, .create_errno = ENOSPC});
  fs_.full_until_removed = true;
  ASSERT_TRUE(Put(Chain(1, 1)[0]));
  EXPECT_EQ(context_->index.Contains(chain), (std::vector<bool>{false, true, true, true}));
}

TEST_F(DiskWriterTest, TooFewDescriptorsAreNoReasonToEvict) {
  Open();
  const auto chain = Chain(4);
  for (const ChunkKey& key : chain) ASSERT_TRUE(Put(key));
  fs_.Set({.create_error = 1, .create_errno = EMFILE});
  const auto status = Put(Chain(1, 1)[0]);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("ulimit -n"), std::string::npos);
  EXPECT_EQ(context_->index.Contains(chain), std::vector<bool>(4, true));
}

TEST_F(DiskWriterTest, AFileSystemThatOthersFillDoesNotCostTheWholeStore) {
  Open();
  for (const ChunkKey& key : Chain(20)) ASSERT_TRUE(Put(key));
  fs_.Set({.no_space = 1});
  for (const ChunkKey& key : Chain(20, 1)) EXPECT_FALSE(Put(key));
  EXPECT_GE(context_->index.Totals().first, 17u);
}

TEST_F(DiskWriterTest, WhatHasTheChunksNameAndIsNoFileMakesWay) {
  Open();
  stdfs::create_directories(context_->PathOf(key_));
  ASSERT_TRUE(Put(key_));
  EXPECT_EQ(context_->bad_files.count(), 1u);
}

TEST_F(DiskWriterTest, NothingIsAskedOfADeviceThatKeepsAWrite) {
  Open();
  const Watched held = context_->health.Watch(OverdueWatch::Kind::kWrite, "another");
  context_->health.Check(Clock::Real().Now() + Seconds(1000));
  const auto status = Put(key_);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_EQ(fs_.Take(), Calls{});
}

// Room for one chunk is that of three small ones of another model, each of which takes its time.
TEST_F(DiskWriterTest, TheTimeThatMakingRoomTakesIsNotTheDevicesFault) {
  HookedFileSystem fs;
  DiskTierOptions options = SmallOptions(dir_.path());
  options.capacity_bytes = options.layout.page_bytes();
  options.overdue_after = Seconds(1000);
  for (const ChunkKey& key : Chain(3, 5)) {
    const std::string path = StoreDir(dir_.path()).ChunkPath({key, key});
    stdfs::create_directories(stdfs::path(path).parent_path());
    std::ofstream(path) << "small";
  }
  DiskContext context(options, fs);
  DiskRoom room(context);
  DiskWriter writer(context, room);
  ASSERT_TRUE(fs.MakeDirs(context.store.ShardDir(context.IdOf(key_))));
  room.ScanFirst();
  // The health of the device as it would be if each pause lasted as long as overdue_after.
  std::optional<TimePoint> last;
  const auto pause = [&](const std::string&) {
    if (last) context.health.Check(*last + options.overdue_after);
    EXPECT_TRUE(context.health.MayWrite());
    last = Clock::Real().Now();
    EXPECT_TRUE(Eventually([&] { return Clock::Real().Now() > *last; }));
  };
  fs.before_remove = fs.before_create = pause;
  PageBuffer page(SmallLayout());
  FillPage(key_, page.span());
  EXPECT_TRUE(writer.Put({key_, Root(), NumericPath::kF32Fma, page.span()}));
  EXPECT_TRUE(last);
}

}  // namespace
}  // namespace kvcake
