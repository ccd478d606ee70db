// What only a tier of files can get wrong: bad files, restarts, shared directories, faults.
#include "store/disk_tier.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "io/faulty_file_system_testing.h"
#include "store/store_dir.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
namespace stdfs = std::filesystem;

class DiskTierTest : public testing::Test {
 protected:
  DiskTierTest() {
    options_.dir = dir_.path();
    options_.layout = layout_;
    options_.root = Root();
    options_.missing_ttl = Seconds(0);
    options_.upkeep_interval = Seconds(3600);  // these tests write where no writer would
  }

  void Open(FileSystem& fs = FileSystem::Real()) {
    tier_.reset();
    auto tier = DiskTier::Open(options_, fs);
    ASSERT_TRUE(tier) << tier.error().message;
    tier_ = std::move(*tier);
  }
  std::string PathOf(size_t i) const {
    return StoreDir(dir_.path()).ChunkPath({Root(), chain_[i]});
  }
  Status Put(size_t i) { return PutChunk(*tier_, layout_, chain_[i], ParentOf(chain_, i)); }
  std::optional<ErrorCode> Read(size_t i) {
    return ReadBack(*tier_, layout_, chain_[i], ParentOf(chain_, i));
  }
  size_t Quarantined() const {
    const stdfs::path dir = StoreDir(dir_.path()).QuarantineDir();
    if (!stdfs::exists(dir)) return 0;
    return static_cast<size_t>(std::distance(stdfs::directory_iterator(dir), {}));
  }
  // Chunk 0 as its file now is must be refused, counted and moved away, then be writable again.
  void ExpectBad(const std::string& what) {
    const TierStats before = tier_->Stats();
    const size_t quarantined = Quarantined();
    ASSERT_EQ(Read(0), ErrorCode::kCorrupt) << what;
    const TierStats after = tier_->Stats();
    EXPECT_EQ(after.reads_failed, before.reads_failed + 1) << what;
    EXPECT_EQ(after.quarantined, before.quarantined + 1) << what;
    EXPECT_EQ(Quarantined(), quarantined + 1) << what;
    EXPECT_FALSE(stdfs::exists(stdfs::symlink_status(PathOf(0)))) << what;
    EXPECT_FALSE(tier_->Residency(chain_)[0]) << what;
    ASSERT_TRUE(Put(0)) << what;
    ASSERT_EQ(Read(0), std::nullopt) << what;
  }
  void FlipByte(size_t i, uint64_t at) {
    std::fstream file(PathOf(i), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char c = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(c ^ 0x20));
    ASSERT_TRUE(file.good());
  }

  TempDir dir_;
  const KvLayout layout_ = SmallLayout();
  const std::vector<ChunkKey> chain_ = Chain(8);
  DiskTierOptions options_;
  FaultyFileSystem faulty_{FileSystem::Real(), 1};
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(DiskTierTest, FilesArePrivateAndNamedByTheFormat) {
  options_.description = R"({"model": "a test"})";
  Open();
  ASSERT_TRUE(Put(0));
  const std::string hex = chain_[0].Hex();
  const std::string root = dir_.path() + "/v1/" + Root().Hex();
  EXPECT_EQ(PathOf(0), root + "/" + hex.substr(0, 2) + "/" + hex);
  struct stat st;
  ASSERT_EQ(stat(PathOf(0).c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_EQ(static_cast<uint64_t>(st.st_size), layout_.page_bytes());
  ASSERT_EQ(stat(root.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0700u);
  EXPECT_EQ(*ReadText(FileSystem::Real(), root + "/model.json", 100), options_.description);
  EXPECT_EQ(std::distance(stdfs::directory_iterator(root + "/" + hex.substr(0, 2)), {}), 1)
      << "a temporary file was left";
}

TEST_F(DiskTierTest, EveryByteClassOfAFileIsVerified) {
  options_.quarantine_files_max = 1000;
  Open();
  ASSERT_TRUE(Put(0));
  const std::vector<uint64_t> header_fields = {0,  7,  8,  12, 16, 24, 28,  32,  36,  40,   42,  44,
                                               46, 48, 56, 64, 72, 96, 128, 160, 192, 4087, 4088};
  for (uint64_t at : header_fields) {
    FlipByte(0, at);
    ExpectBad(fmt::format("header byte {}", at));
  }
  for (int layer = 0; layer < layout_.layers; ++layer) {
    for (uint64_t in : {uint64_t{0}, layout_.slab_payload_bytes() - 1, layout_.slab_payload_bytes(),
                        layout_.slab_bytes() - 1}) {  // the last two are padding
      FlipByte(0, layout_.slab_offset(layer) + in);
      ExpectBad(fmt::format("layer {} byte {}", layer, in));
    }
  }
}

TEST_F(DiskTierTest, EveryWrongSizeIsRefused) {
  Open();
  ASSERT_TRUE(Put(0));
  std::vector<uint64_t> sizes = {1, 4095, layout_.page_bytes() - 1, layout_.page_bytes() + 1,
                                 layout_.page_bytes() + 4096};
  for (uint64_t at = 0; at < layout_.page_bytes(); at += 4096) sizes.push_back(at);
  for (uint64_t size : sizes) {
    stdfs::resize_file(PathOf(0), size);
    ExpectBad(fmt::format("{} bytes", size));
  }
}

TEST_F(DiskTierTest, WhatIsNotAChunkFileIsRefused) {
  Open();
  ASSERT_TRUE(Put(0));
  ASSERT_TRUE(Put(1));
  stdfs::copy_file(PathOf(1), PathOf(0), stdfs::copy_options::overwrite_existing);
  ExpectBad("another chunk's file");
  stdfs::remove(PathOf(0));
  stdfs::create_symlink(PathOf(1), PathOf(0));
  ExpectBad("a symbolic link");
  stdfs::remove(PathOf(0));
  stdfs::create_directory(PathOf(0));
  ExpectBad("a directory");
  stdfs::remove(PathOf(0));
  ASSERT_EQ(mkfifo(PathOf(0).c_str(), 0600), 0);
  ExpectBad("a pipe");
  std::ofstream(PathOf(0)) << std::string(layout_.page_bytes(), 'x');
  ExpectBad("a foreign file of the right size");
  EXPECT_EQ(Read(1), std::nullopt) << "what a link pointed at was harmed";
}

TEST_F(DiskTierTest, AnotherModelsChunkIsRefused) {
  const ChunkKey other_root = KvIdentity().Add("model", "another").Root();
  Open();
  ASSERT_TRUE(Put(0));
  options_.root = other_root;
  Open();
  EXPECT_FALSE(tier_->Residency(chain_)[0]);
  EXPECT_EQ(tier_->Stats().chunks, 0u);
  const std::string planted = StoreDir(dir_.path()).ChunkPath({other_root, chain_[0]});
  stdfs::create_directories(stdfs::path(planted).parent_path());
  stdfs::copy_file(PathOf(0), planted);
  EXPECT_EQ(Read(0), ErrorCode::kCorrupt);
  EXPECT_EQ(tier_->Stats().quarantined, 1u);
}

TEST_F(DiskTierTest, ADirectoryInTheWayOfAWriteIsMovedAway) {
  Open();
  stdfs::create_directories(PathOf(0));
  ASSERT_TRUE(Put(0));
  EXPECT_EQ(Read(0), std::nullopt);
  EXPECT_EQ(tier_->Stats().quarantined, 1u);
}

TEST_F(DiskTierTest, TheQuarantineIsBounded) {
  options_.quarantine_files_max = 2;
  Open();
  for (size_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(Put(i));
    FlipByte(i, 5000);
    EXPECT_EQ(Read(i), ErrorCode::kCorrupt);
    EXPECT_FALSE(stdfs::exists(PathOf(i)));
  }
  EXPECT_EQ(Quarantined(), 2u);
  Open();
  ASSERT_TRUE(Put(0));
  FlipByte(0, 5000);
  EXPECT_EQ(Read(0), ErrorCode::kCorrupt);
  EXPECT_EQ(Quarantined(), 2u) << "what an earlier run quarantined counts too";
}

TEST_F(DiskTierTest, ARestartFindsWhatIsThereAndSweepsTheRest) {
  Open();
  for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(Put(i));
  const std::string dead = PathOf(5) + ".tmp.999999999.1";
  const std::string fresh = PathOf(5) + fmt::format(".tmp.{}.2", getpid());
  const std::string foreign = PathOf(5) + ".bak";
  stdfs::create_directories(stdfs::path(dead).parent_path());
  for (const std::string& path : {dead, fresh, foreign}) std::ofstream(path) << "x";
  stdfs::resize_file(PathOf(3), 4096);
  Open();
  EXPECT_TRUE(stdfs::exists(dead)) << "its writer may live in another pid namespace";
  options_.temporary_age_min = Seconds(0);
  Open();
  EXPECT_FALSE(stdfs::exists(dead));
  EXPECT_TRUE(stdfs::exists(fresh)) << "another thread may be writing it";
  EXPECT_TRUE(stdfs::exists(foreign)) << "not ours to delete";
  EXPECT_EQ(tier_->Stats().chunks, 3u);
  EXPECT_EQ(tier_->Stats().bytes, 3 * layout_.page_bytes());
  EXPECT_EQ(Quarantined(), 1u) << "the truncated file";
  const std::vector<bool> expected = {true, true, true, false, false, false, false, false};
  EXPECT_EQ(tier_->Residency(chain_), expected);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(Read(i), std::nullopt);
}

TEST_F(DiskTierTest, EvictionAfterARestartFollowsTheTimesOfUse) {
  Open();
  for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(Put(i));
  const int64_t now = UnixSeconds();
  const int64_t ages[] = {100, 4000, 3000, 200};
  for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(FileSystem::Real().Touch(PathOf(i), now - ages[i]));
  options_.capacity_bytes = 4 * layout_.page_bytes();
  Open();
  // A read renews an older time after `done`; the destructor has waited for it.
  EXPECT_EQ(Read(1), std::nullopt);
  EXPECT_EQ(Read(3), std::nullopt);
  Open();
  EXPECT_GE(FileSystem::Real().Stat(PathOf(1))->mtime_s, now);
  EXPECT_EQ(FileSystem::Real().Stat(PathOf(3))->mtime_s, now - 200) << "use is kept coarsely";
  ASSERT_TRUE(Put(4));
  ASSERT_TRUE(Put(5));
  const std::vector<bool> expected = {true, true, false, false, true, true, false, false};
  EXPECT_EQ(tier_->Residency(chain_), expected);
}

TEST_F(DiskTierTest, ProcessesSeeEachOthersChunks) {
  Open();
  auto other = DiskTier::Open(options_);
  ASSERT_TRUE(other);
  EXPECT_FALSE(Held(**other, chain_)[0]);
  ASSERT_TRUE(Put(0));
  EXPECT_TRUE(Held(**other, chain_)[0]);
  EXPECT_EQ(ReadBack(**other, layout_, chain_[0], Root()), std::nullopt);
  ASSERT_TRUE((*other)->Evict(chain_[0]));
  EXPECT_EQ(Read(0), ErrorCode::kNotFound);
  EXPECT_FALSE(Held(*tier_, chain_)[0]);
  EXPECT_EQ(tier_->Stats().reads_failed, 0u) << "an evicted file is a miss";
}

TEST_F(DiskTierTest, AKeyThatWasMissingIsNotAskedForAgainForAWhile) {
  options_.missing_ttl = Seconds(3600);
  Open();
  auto other = DiskTier::Open(options_);
  EXPECT_FALSE(Held(**other, chain_)[0]);
  ASSERT_TRUE(Put(0));
  EXPECT_FALSE(Held(**other, chain_)[0]);
  EXPECT_EQ(ReadBack(**other, layout_, chain_[0], Root()), std::nullopt) << "only a hint";
}

TEST_F(DiskTierTest, OnlyTheHolderOfTheLockEvicts) {
  options_.capacity_bytes = 2 * layout_.page_bytes();
  Open();
  ASSERT_TRUE(Put(0));
  ASSERT_TRUE(Put(1));
  {
    auto lock = FileSystem::Real().TryLock(StoreDir(dir_.path()).LockPath());
    ASSERT_TRUE(lock && *lock);
    ASSERT_TRUE(Put(2));
    EXPECT_EQ(tier_->Stats().evicted, 0u);
  }
  ASSERT_TRUE(Put(3));
  EXPECT_EQ(tier_->Stats().evicted, 2u);
  EXPECT_EQ(tier_->Stats().bytes, 2 * layout_.page_bytes());
}

TEST_F(DiskTierTest, CapacityCountsEveryRootAndEveryProcess) {
  options_.capacity_bytes = 4 * layout_.page_bytes();
  options_.upkeep_interval = Seconds(0.01);
  Open();
  auto other_options = options_;
  other_options.root = KvIdentity().Add("model", "another").Root();
  auto other = DiskTier::Open(other_options);
  ASSERT_TRUE(other);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(Put(i));
    ASSERT_TRUE(PutChunk(**other, layout_, chain_[i], ParentOf(chain_, i)));
  }
  EXPECT_TRUE(Eventually([&] {  // one may evict for what the other has just evicted
    const auto roots = ListStore(dir_.path());
    const auto pages = (roots->front().bytes + roots->back().bytes) / layout_.page_bytes();
    return pages >= 2 && pages <= 4;
  }));
}

TEST_F(DiskTierTest, UnalignedBuffersAreServedToo) {
  Open();
  std::vector<std::byte> memory(2 * layout_.page_bytes());
  const auto odd = std::span(memory).subspan(3, layout_.page_bytes());
  FillPage(chain_[0], odd);
  ASSERT_TRUE(tier_->Put({chain_[0], Root(), NumericPath::kF32, odd}));
  EXPECT_EQ(Read(0), std::nullopt);
}

TEST_F(DiskTierTest, PaddingIsWrittenAsZerosAndThePageLeftAlone) {
  Open();
  PageBuffer page(layout_);
  std::string first;
  for (unsigned char junk : {0x11, 0x22}) {
    std::memset(page.span().data(), junk, page.span().size());
    for (int layer = 0; layer < layout_.layers; ++layer) {
      std::memset(&page.span()[layout_.slab_offset(layer)], 0x77, layout_.slab_payload_bytes());
    }
    const std::vector<std::byte> before(page.span().begin(), page.span().end());
    ASSERT_TRUE(tier_->Put({chain_[0], Root(), NumericPath::kF32, page.span()}));
    EXPECT_TRUE(std::ranges::equal(page.span(), before));
    const std::string file = *ReadText(FileSystem::Real(), PathOf(0), layout_.page_bytes());
    ASSERT_EQ(file.size(), layout_.page_bytes());
    for (int layer = 0; layer < layout_.layers; ++layer) {
      const std::string slab = file.substr(layout_.slab_offset(layer), layout_.slab_bytes());
      const size_t payload = layout_.slab_payload_bytes();
      EXPECT_EQ(slab.substr(0, payload), std::string(payload, 0x77));
      EXPECT_EQ(slab.substr(payload), std::string(slab.size() - payload, 0)) << "layer " << layer;
    }
    if (first.empty()) first = file;
    EXPECT_EQ(file, first) << "files of one chunk differ";
    ASSERT_TRUE(tier_->Evict(chain_[0]));
  }
}

TEST_F(DiskTierTest, WhereDirectIoIsRefusedTheCacheServes) {
  FaultyFileSystem& fs = faulty_;
  fs.Set({.direct_error = 1});
  Open(fs);
  ASSERT_TRUE(Put(0));
  EXPECT_EQ(Read(0), std::nullopt);
  EXPECT_EQ(fs.faults(), 1u) << "only the trial met it";
  const ChunkId probe{Root(), Root()};
  EXPECT_TRUE(stdfs::is_empty(StoreDir(dir_.path()).ShardDir(probe)));
}

// Delegates to the real file system, but for the names it is told.
class OddFileSystem : public FaultyFileSystem {
 public:
  OddFileSystem() : FaultyFileSystem(FileSystem::Real(), 1) {}
  std::string unlistable;
  std::vector<std::string> unremovable;

  Result<std::vector<DirEntry>> List(const std::string& path) override {
    if (path == unlistable) return Fail(ErrorCode::kIo, "cannot list {}", path);
    return FaultyFileSystem::List(path);
  }
  Status Remove(const std::string& path) override {
    if (std::find(unremovable.begin(), unremovable.end(), path) != unremovable.end()) {
      return Fail(ErrorCode::kIo, "cannot remove {}", path);
    }
    return FaultyFileSystem::Remove(path);
  }
};

TEST_F(DiskTierTest, ADirectoryThatCannotBeListedHidesOnlyItself) {
  Open();
  for (size_t i = 0; i < 8; ++i) ASSERT_TRUE(Put(i));
  OddFileSystem fs;
  fs.unlistable = StoreDir(dir_.path()).ShardDir({Root(), chain_[3]});
  uint64_t hidden = 0;
  for (const ChunkKey& key : chain_) hidden += key.digest[0] == chain_[3].digest[0];
  options_.capacity_bytes = 8 * layout_.page_bytes();
  Open(fs);
  EXPECT_EQ(tier_->Stats().chunks, 8 - hidden);
  EXPECT_TRUE(Held(*tier_, chain_)[3]) << "asked for by name";
  const auto more = Chain(1, 1);
  ASSERT_TRUE(PutChunk(*tier_, layout_, more[0], Root()));
  EXPECT_GE(tier_->Stats().chunks, 9 - hidden);
  EXPECT_LE(tier_->Stats().bytes, 8 * layout_.page_bytes());
  tier_.reset();  // before its file system
}

TEST_F(DiskTierTest, FilesThatCannotBeRemovedDoNotStopEviction) {
  OddFileSystem fs;
  options_.capacity_bytes = 4 * layout_.page_bytes();
  Open(fs);
  for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(Put(i));
  fs.unremovable = {PathOf(0), PathOf(2)};
  for (size_t i = 4; i < 8; ++i) {
    ASSERT_TRUE(Put(i));
    ASSERT_LE(tier_->Stats().bytes, 4 * layout_.page_bytes());
  }
  const std::vector<bool> expected = {true, false, true, false, false, false, true, true};
  EXPECT_EQ(tier_->Residency(chain_), expected);
  EXPECT_EQ(tier_->Stats().evicted, 4u);
  EXPECT_GE(tier_->Stats().evictions_failed, 2u);
  fs.unremovable = {PathOf(0), PathOf(2), PathOf(6), PathOf(7)};
  const auto status = Put(1);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(status.error().message.find("--disk-capacity"), std::string::npos);
  EXPECT_EQ(tier_->Stats().chunks, 4u);
  fs.unremovable.clear();
  ASSERT_TRUE(Put(1));
  EXPECT_EQ(Read(1), std::nullopt);
  tier_.reset();  // before its file system
}

TEST_F(DiskTierTest, FaultsOfTheDiskCostMissesNeverWrongAnswers) {
  size_t failed = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    FaultyFileSystem fs(FileSystem::Real(), seed);
    options_.io_bytes_max = 8192;
    options_.quarantine_files_max = 1000;
    options_.failures_max = 1000;  // the seeds may fail many in a row, which is another test's
    Open(fs);
    fs.Set({.open_error = 0.1,
            .create_error = 0.05,
            .read_error = 0.05,
            .short_read = 0.3,
            .bit_flip = 0.1,
            .write_error = 0.05,
            .short_write = 0.3,
            .no_space = 0.05,
            .lost_write = 0.05,
            .rename_error = 0.05});
    const auto chain = Chain(40, static_cast<int>(seed));
    size_t wrote = 0, read = 0;
    for (size_t i = 0; i < chain.size(); ++i) {
      wrote += PutChunk(*tier_, layout_, chain[i], ParentOf(chain, i)).has_value();
      // ReadBack checks the bytes of whatever is called right.
      read += !ReadBack(*tier_, layout_, chain[i], ParentOf(chain, i));
    }
    EXPECT_GT(fs.faults(), 20u);
    EXPECT_GT(wrote, 10u);
    EXPECT_GT(read, 5u);
    failed += chain.size() - wrote;
    // The fault goes away: the tier recovers without being opened anew.
    fs.Set({});
    for (size_t i = 0; i < chain.size(); ++i) {
      const auto before = ReadBack(*tier_, layout_, chain[i], ParentOf(chain, i));
      EXPECT_TRUE(!before || before == ErrorCode::kNotFound || before == ErrorCode::kCorrupt);
      ASSERT_TRUE(PutChunk(*tier_, layout_, chain[i], ParentOf(chain, i)));
      EXPECT_EQ(ReadBack(*tier_, layout_, chain[i], ParentOf(chain, i)), std::nullopt);
    }
    tier_.reset();
  }
  // Whose turn it is to meet a fault is up to the threads: one seed alone may spare every write.
  EXPECT_GT(failed, 0u);
}

TEST_F(DiskTierTest, AFullDiskIsAClearStatusAndLeavesNothingBehind) {
  FaultyFileSystem& fs = faulty_;
  Open(fs);
  fs.Set({.no_space = 1});
  const auto status = Put(0);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(status.error().message.find("--disk-capacity"), std::string::npos);
  EXPECT_EQ(tier_->Stats().writes_failed, 1u);
  EXPECT_TRUE(stdfs::is_empty(stdfs::path(PathOf(0)).parent_path()));
  fs.Set({});
  EXPECT_TRUE(Put(0));
  EXPECT_EQ(Read(0), std::nullopt);
}

TEST_F(DiskTierTest, AReadThatTheDeviceHoldsIsCountedAndKeepsItsBuffer) {
  FaultyFileSystem& fs = faulty_;
  options_.overdue_after = Seconds(0.5);  // longer than opening it takes
  options_.max_reads_in_flight = 1;
  Open(fs);
  ASSERT_TRUE(Put(0));
  fs.Set({.read_stall = 1});
  Reads reads;
  const size_t held = reads.Start(*tier_, layout_, chain_[0], Root());
  ASSERT_TRUE(Eventually([&] { return tier_->Stats().reads_overdue > 0; }));
  const size_t waiting = reads.Start(*tier_, layout_, chain_[0], Root());
  tier_->Cancel(reads.id(waiting));
  EXPECT_FALSE(reads.Wait(waiting).status);  // answered although the device hangs
  tier_->Cancel(reads.id(held));
  EXPECT_EQ(reads.answers(held), 0) << "its buffer is still the device's";
  fs.Set({});
  fs.ReleaseStalled();
  reads.Wait(held);
  EXPECT_EQ(tier_->Stats().reads_overdue, 0u);
}

TEST_F(DiskTierTest, SenselessOptionsAreRefusedByName) {
  const auto message = [&](auto change) {
    DiskTierOptions options = options_;
    change(options);
    auto tier = DiskTier::Open(options);
    return tier ? std::string() : tier.error().message;
  };
  EXPECT_NE(message([](auto& o) { o.capacity_bytes = 100; }).find("--disk-capacity"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.layout.layers = 500; }).find("487"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.dir = ""; }).find("--store"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.dir = "/dev/null/x"; }).find("/dev/null"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.io_bytes_max = 1000; }).find("io_bytes_max"),
            std::string::npos);
  EXPECT_EQ(message([](auto&) {}), "");
}

}  // namespace
}  // namespace kvcake
