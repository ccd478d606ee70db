// A store on a mount whose every call takes long: opens and looks are made several at a time.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/mutex.h"
#include "io/faulty_file_system_testing.h"
#include "store/disk_testing.h"
#include "store/disk_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

// Each call that opens or looks for a file takes 2 ms. From the `alone`th on they also wait for
// each other, until `together` of them have come.
class SlowFileSystem : public FaultyFileSystem {
 public:
  SlowFileSystem() : FaultyFileSystem(FileSystem::Real(), 1) {}
  void Expect(int alone, int together) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    alone_ = alone;
    together_ = together;
    came_ = 0;
  }
  int came() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return came_;
  }
  // Whether all calls found the others.
  bool met() const { return met_; }

  Result<std::unique_ptr<File>> OpenRead(const std::string& path, bool direct) override {
    Call();
    return FaultyFileSystem::OpenRead(path, direct);
  }
  Result<FileInfo> Stat(const std::string& path) override {
    Call();
    return FaultyFileSystem::Stat(path);
  }

 private:
  void Call() EXCLUDES(mutex_) {
    std::this_thread::sleep_for(Seconds(2e-3));
    MutexLock lock(mutex_);
    if (++came_ <= alone_) return;
    if (came_ - alone_ >= together_) others_.NotifyAll();
    const TimePoint deadline = Clock::Real().Now() + kPatience / 4;
    while (came_ - alone_ < together_ && others_.WaitUntil(mutex_, deadline)) continue;
    if (came_ - alone_ < together_) met_ = false;
  }

  std::atomic<bool> met_{true};
  Mutex mutex_;
  CondVar others_;
  int alone_ GUARDED_BY(mutex_) = 0;
  int together_ GUARDED_BY(mutex_) = 0;
  int came_ GUARDED_BY(mutex_) = 0;  // since Expect
};

constexpr int kTogether = 4;

class DiskTierSlowMountTest : public testing::Test {
 protected:
  DiskTierSlowMountTest() {
    options_.call_threads = kTogether;
    options_.overdue_after = kPatience;
    options_.upkeep_interval = kPatience;  // no scan finds what is looked for
  }
  void Open() { tier_ = DiskTier::Open(options_, fs_).value(); }
  // As another process does that uses the same directory.
  void FillByAnother() {
    const auto other = DiskTier::Open(options_).value();
    for (size_t i = 0; i < chain_.size(); ++i) {
      ASSERT_TRUE(PutChunk(*other, options_.layout, chain_[i], ParentOf(chain_, i)));
    }
  }

  TempDir dir_;
  SlowFileSystem fs_;
  DiskTierOptions options_ = SmallOptions(dir_.path());
  const std::vector<ChunkKey> chain_ = Chain(16);
  Reads reads_;  // outlives the tier
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(DiskTierSlowMountTest, FilesAreOpenedSeveralAtATime) {
  FillByAnother();
  Open();
  fs_.Expect(/*alone=*/0, kTogether);
  for (size_t i = 0; i < chain_.size(); ++i) {
    reads_.Start(*tier_, options_.layout, chain_[i], ParentOf(chain_, i));
  }
  for (size_t i = 0; i < chain_.size(); ++i) EXPECT_TRUE(reads_.Wait(i).status) << i;
  EXPECT_TRUE(fs_.met());
  EXPECT_EQ(tier_->Stats().opens.calls, chain_.size());
  EXPECT_GE(tier_->Stats().opens.seconds, 2e-3 * static_cast<double>(chain_.size()));
}

// The first look says that calls take long.
TEST_F(DiskTierSlowMountTest, FilesAreLookedForSeveralAtATime) {
  Open();
  FillByAnother();
  fs_.Expect(/*alone=*/1, kTogether);
  EXPECT_EQ(Held(*tier_, chain_), std::vector<bool>(chain_.size(), true));
  EXPECT_TRUE(fs_.met());
  EXPECT_EQ(tier_->Stats().looks.calls, chain_.size());
  EXPECT_GE(tier_->Stats().looks.seconds, 2e-3 * static_cast<double>(chain_.size()));
}

TEST_F(DiskTierSlowMountTest, WhoDoesNotWantToKnowMoreEndsTheLook) {
  Open();
  std::atomic<int> heard{0};
  ASSERT_TRUE(tier_->Look({.keys = chain_, .found = [&](size_t, const std::vector<bool>&) {
                             ++heard;
                             return false;
                           }}));
  tier_.reset();
  EXPECT_EQ(heard, 1);
}

TEST_F(DiskTierSlowMountTest, WritesStandBackWhileAChunkIsRead) {
  options_.write_turns = {.share = 1e-9, .linger = Seconds(0), .wait_max = Seconds(1e6)};
  Open();
  const auto put = [&](size_t i) {
    return PutChunk(*tier_, options_.layout, chain_[i], ParentOf(chain_, i)).has_value();
  };
  ASSERT_TRUE(put(0));
  fs_.Set({.read_stall = 1});
  const size_t read = reads_.Start(*tier_, options_.layout, chain_[0], Root());
  ASSERT_TRUE(Eventually([&] { return fs_.faults() > 0; }));
  ASSERT_TRUE(put(1)) << "one has its turn";
  fs_.Expect(0, 0);
  std::atomic<bool> released{false}, waited{false}, written{false};
  std::thread writer([&] {
    EXPECT_TRUE(put(2));
    waited = released.load();
    written = true;
  });
  EXPECT_TRUE(Eventually([&] { return fs_.came() >= 3; })) << "before its turn it looks around";
  // A write that does not stand back ends meanwhile.
  for (int i = 0; i < 100 && !written; ++i) std::this_thread::sleep_for(Seconds(1e-3));
  released = true;
  fs_.Set({});
  fs_.ReleaseStalled();
  writer.join();
  EXPECT_TRUE(waited);
  EXPECT_TRUE(reads_.Wait(read).status);
}

TEST_F(DiskTierSlowMountTest, ScansAreCounted) {
  Open();
  EXPECT_EQ(tier_->Stats().scans.calls, 1u);
}

// A directory whose names come only once they are released.
class HeldNames : public FaultyFileSystem {
 public:
  HeldNames() : FaultyFileSystem(FileSystem::Real(), 1) {}

  Result<std::vector<DirEntry>> List(const std::string& path) override EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      while (!released_) changed_.Wait(mutex_);
    }
    return FaultyFileSystem::List(path);
  }
  void Release() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    released_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool released_ GUARDED_BY(mutex_) = false;
};

TEST_F(DiskTierSlowMountTest, AStoreIsUsedBeforeAllOfItIsKnown) {
  FillByAnother();
  HeldNames fs;
  options_.open_wait = Seconds(0.01);
  options_.capacity_bytes = 8 * options_.layout.page_bytes();
  const auto tier = DiskTier::Open(options_, fs).value();
  const auto more = Chain(2, /*seed=*/1);
  EXPECT_EQ(tier->Residency(chain_), std::vector<bool>(chain_.size()));
  EXPECT_EQ(Held(*tier, {chain_[0], more[0]}), (std::vector{true, false}));
  EXPECT_EQ(ReadBack(*tier, options_.layout, chain_[0], Root()), std::nullopt);
  EXPECT_TRUE(PutChunk(*tier, options_.layout, more[0], Root()));
  EXPECT_EQ(ReadBack(*tier, options_.layout, more[0], Root()), std::nullopt);
  EXPECT_EQ(tier->Stats().chunks, 2u);
  fs.Release();
  // All is known, and what is too much goes at once, though the next look is far away.
  EXPECT_TRUE(Eventually([&] { return tier->Stats().evicted > 0 && tier->Stats().chunks <= 8; }));
}

TEST_F(DiskTierSlowMountTest, AStoreIsClosedBeforeAllOfItIsKnown) {
  FillByAnother();
  HeldNames fs;
  options_.open_wait = Seconds(0.01);
  auto tier = DiskTier::Open(options_, fs).value();
  std::thread closer([&] { tier.reset(); });
  fs.Release();
  closer.join();
}

}  // namespace
}  // namespace kvcake
