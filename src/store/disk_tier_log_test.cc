// What a disk tier tells its operator: in the log as it happens, and beside its chunks at its end.
#include <gtest/gtest.h>

#include <fstream>

#include "base/log_testing.h"
#include "io/faulty_file_system_testing.h"
#include "store/disk_testing.h"
#include "store/disk_tier.h"
#include "store/store_dir.h"

namespace kvcake {
namespace {

using namespace testing_util;

class DiskTierLogTest : public testing::Test {
 protected:
  DiskTierLogTest() {
    options_.missing_ttl = Seconds(0);
    options_.upkeep_interval = Seconds(3600);
  }
  void Open() { tier_ = DiskTier::Open(options_, fs_).value(); }
  Status Put(size_t i) { return PutChunk(*tier_, options_.layout, chain_[i], ParentOf(chain_, i)); }
  std::optional<ErrorCode> Read(size_t i) {
    return ReadBack(*tier_, options_.layout, chain_[i], ParentOf(chain_, i));
  }
  // What fails is said once, however often it does.
  void ExpectFails(const std::string& what) {
    EXPECT_TRUE(Eventually([&] { return log_.Count("store: " + what + " fails: ") == 1; })) << what;
  }
  void ExpectWorksAgain(const std::string& what) {
    EXPECT_TRUE(Eventually([&] { return log_.Count("store: " + what + " works again") == 1; }))
        << what;
    EXPECT_EQ(log_.Count(what + " fails"), 1) << what;
  }

  TempDir dir_;
  CapturedLog log_;
  FaultyFileSystem fs_{FileSystem::Real(), 1};
  DiskTierOptions options_ = SmallOptions(dir_.path());
  const std::vector<ChunkKey> chain_ = Chain(6);
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(DiskTierLogTest, WritesThatFailAndWorkAgainAreToldOf) {
  Open();
  fs_.Set({.create_error = 1});
  for (size_t i = 0; i < 2; ++i) EXPECT_FALSE(Put(i));
  ExpectFails("writing chunks");
  fs_.Set({});
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(Put(i));
  ExpectWorksAgain("writing chunks");
}

TEST_F(DiskTierLogTest, ReadsThatFailAndWorkAgainAreToldOf) {
  Open();
  for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(Put(i));
  fs_.Set({.read_error = 1});
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(Read(i), ErrorCode::kIo);
  ExpectFails("reading chunks");
  fs_.Set({});
  EXPECT_EQ(Read(2), std::nullopt);
  ExpectWorksAgain("reading chunks");
}

TEST_F(DiskTierLogTest, ScansThatFailAndWorkAgainAreToldOf) {
  options_.upkeep_interval = Seconds(0.01);
  Open();
  fs_.Set({.list_error = 1});
  ExpectFails("looking for files");
  fs_.Set({});
  ExpectWorksAgain("looking for files");
}

TEST_F(DiskTierLogTest, AReadOfSomeLayersCountsTheirBytesAlone) {
  Open();
  ASSERT_TRUE(Put(0));
  Reads reads;
  const LayerRange layers{1, 2};
  EXPECT_TRUE(reads.Wait(reads.Start(*tier_, options_.layout, chain_[0], Root(), layers)).status);
  EXPECT_EQ(tier_->Stats().read_bytes, 2 * options_.layout.slab_bytes());
}

// For kvcake store ls.
TEST_F(DiskTierLogTest, WhatAProcessDidIsAddedUpBesideItsChunks) {
  const uint64_t page = options_.layout.page_bytes();
  for (uint64_t lives = 1; lives <= 2; ++lives) {
    Open();
    for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(Put(i));
    for (size_t i = 0; i < 3; ++i) ASSERT_EQ(Read(i), std::nullopt);
    std::ofstream(StoreDir(dir_.path()).ChunkPath({Root(), chain_[0]})) << "none";
    ASSERT_EQ(Read(0), ErrorCode::kCorrupt);
    for (size_t i = 1; i < 4; ++i) ASSERT_TRUE(tier_->Evict(chain_[i]));
    tier_.reset();
    const StoreUsage usage = ReadUsage(fs_, StoreDir(dir_.path()), Root()).value();
    EXPECT_EQ(usage.writes, 4 * lives);
    EXPECT_EQ(usage.write_bytes, 4 * lives * page);
    EXPECT_EQ(usage.reads, 3 * lives);
    EXPECT_EQ(usage.read_bytes, 3 * lives * page);
    EXPECT_EQ(usage.evicted, 3 * lives);
    EXPECT_EQ(usage.quarantined, lives);
  }
  Open();
  std::ofstream(StoreDir(dir_.path()).ChunkPath({Root(), chain_[0]})) << "none";
  ASSERT_TRUE(tier_->Evict(chain_[0]));
  tier_.reset();
  EXPECT_EQ(ReadUsage(fs_, StoreDir(dir_.path()), Root())->evicted, 7u) << "though it did no more";
}

TEST_F(DiskTierLogTest, WhatAProcessDidInAStoreThatWasClearedIsNotMissed) {
  Open();
  ASSERT_TRUE(Put(0));
  ASSERT_TRUE(ClearStore(dir_.path()));
  tier_.reset();
  EXPECT_EQ(log_.Count("are not counted"), 0);
}

}  // namespace
}  // namespace kvcake
