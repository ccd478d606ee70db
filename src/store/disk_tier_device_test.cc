// Devices that do not answer, or are full: what it costs, and that it ends when the fault does.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/mutex.h"
#include "io/faulty_file_system_testing.h"
#include "io/io_queue.h"
#include "store/device_probes.h"
#include "store/disk_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

// What one restoration does: asks what is there, reads it, and computes what it did not get. The
// device holds what is asked of it for ever.
class DiskTierBreakerTest : public testing::Test {
 protected:
  DiskTierBreakerTest() {
    options_.dir = dir_.path();
    options_.layout = SmallLayout();
    options_.root = Root();
    options_.max_reads_in_flight = 2;
    options_.overdue_after = Seconds(0.5);  // longer than an open takes on a busy machine
    options_.probe_interval = Seconds(0.02);
    tier_ = DiskTier::Open(options_, fs_).value();
    for (size_t i = 0; i < chain_.size(); ++i) {
      EXPECT_TRUE(PutChunk(*tier_, options_.layout, chain_[i], ParentOf(chain_, i)));
    }
  }
  ~DiskTierBreakerTest() override {  // nothing is waited for that a test has left behind
    fs_.Set({});
    fs_.ReleaseStalled();
  }
  void ReadAll() {
    for (size_t i = 0; i < chain_.size(); ++i) {
      reads_->Start(*tier_, options_.layout, chain_[i], ParentOf(chain_, i));
    }
  }
  bool Look(int seed) {
    return tier_->Look(
        {.keys = Chain(3, seed), .found = [this](size_t, const std::vector<bool>& held) {
           heard_ += static_cast<int>(held.size());
           return true;
         }});
  }
  void ExpectLeftAlone() {
    EXPECT_EQ(tier_->Residency(chain_), std::vector<bool>(chain_.size()));
    const auto more = Chain(1, 1);
    EXPECT_FALSE(tier_->Look({.keys = more, .found = {}}));
    EXPECT_FALSE(PutChunk(*tier_, options_.layout, more[0], Root())) << "a write would wait too";
  }
  void EndAndExpectRecovery() {
    fs_.Set({});
    fs_.ReleaseStalled();
    EXPECT_TRUE(
        Eventually([&] { return Held(*tier_, chain_) == std::vector<bool>(chain_.size(), true); }));
    EXPECT_TRUE(
        Eventually([&] { return !ReadBack(*tier_, options_.layout, chain_[5], chain_[4]); }));
  }

  TempDir dir_;
  FaultyFileSystem fs_{FileSystem::Real(), 1};
  DiskTierOptions options_;
  const std::vector<ChunkKey> chain_ = Chain(40);
  std::atomic<int> heard_{0};                  // answers to looks
  std::optional<Reads> reads_{std::in_place};  // outlives the tier
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(DiskTierBreakerTest, ADeadDeviceCostsOneWaitAndNotOnePerChunk) {
  fs_.Set({.read_stall = 1});
  ReadAll();
  for (size_t i = 2; i < chain_.size(); ++i) {
    EXPECT_EQ(reads_->Wait(i).status.error().code, ErrorCode::kIo);  // not waiting for its turn
  }
  EXPECT_EQ(reads_->answers(0) + reads_->answers(1), 0) << "their buffers are still the device's";
  ExpectLeftAlone();
  EndAndExpectRecovery();
  EXPECT_TRUE(reads_->Wait(0).status);
  EXPECT_TRUE(reads_->Wait(1).status);
}

TEST_F(DiskTierBreakerTest, ADirectoryThatOpensNothingCostsOneWaitAndNoBuffer) {
  fs_.Set({.open_stall = 1});
  ReadAll();
  for (size_t i = 0; i < chain_.size(); ++i) {
    EXPECT_EQ(reads_->Wait(i).status.error().code, ErrorCode::kIo);
  }
  EXPECT_EQ(tier_->Stats().reads_overdue, 0u);
  const auto opens_max = static_cast<uint64_t>(options_.max_reads_in_flight);
  EXPECT_LE(fs_.faults(), opens_max + DeviceProbes::kProbesMax) << "and no more are tried";
  ExpectLeftAlone();
  EndAndExpectRecovery();
}

TEST_F(DiskTierBreakerTest, ReadsAreCancelledAndTheTierEndsWhileAnOpenHangs) {
  fs_.Set({.open_stall = 1});
  const size_t read = reads_->Start(*tier_, options_.layout, chain_[0], Root());
  EXPECT_TRUE(Eventually([&] { return fs_.faults() > 0; }));
  tier_->Cancel(reads_->id(read));
  EXPECT_EQ(reads_->Wait(read).status.error().code, ErrorCode::kCancelled);
  reads_->Start(*tier_, options_.layout, chain_[1], chain_[0]);
  std::thread end([&] { tier_.reset(); });
  EXPECT_FALSE(reads_->Wait(1).status);
  fs_.Set({});
  fs_.ReleaseStalled();
  end.join();
}

TEST_F(DiskTierBreakerTest, LooksThatHangCostOneWait) {
  fs_.Set({.stat_stall = 1});
  ASSERT_TRUE(Look(1));
  EXPECT_TRUE(Eventually([&] { return !Look(1); })) << "overdue: nobody waits for the same again";
  EXPECT_EQ(heard_, 0);
  EndAndExpectRecovery();
  EXPECT_TRUE(Eventually([&] { return heard_ >= 3; }));
  // Once what was not there may be looked for again.
  EXPECT_TRUE(Eventually([&] { return Look(1); }));
}

TEST_F(DiskTierBreakerTest, ALookThatIsLostForEverKeepsNoOtherWaiting) {
  fs_.Set({.stat_stall = 1});
  ASSERT_TRUE(Look(1));
  EXPECT_TRUE(Eventually([&] { return fs_.faults() > 0; }));
  fs_.Set({.read_error = 1});  // so that it is seen to be overdue
  const std::vector<bool> none(chain_.size());
  EXPECT_TRUE(Eventually([&] { return tier_->Residency(chain_) == none; }));
  fs_.Set({});
  EXPECT_TRUE(Eventually([&] { return tier_->Residency(chain_) != none; })) << "a probe went well";
  ASSERT_TRUE(Look(2));
  EXPECT_TRUE(Eventually([&] { return heard_ == 3; }));
  fs_.ReleaseStalled();
  EXPECT_TRUE(Eventually([&] { return heard_ == 6; }));
}

// One lost request on a device that is otherwise well: probes find out.
TEST_F(DiskTierBreakerTest, AReadThatIsLostForEverDoesNotCloseTheStore) {
  fs_.Set({.read_stall = 1});
  reads_->Start(*tier_, options_.layout, chain_[0], Root());
  EXPECT_TRUE(Eventually([&] { return fs_.faults() > 0; }));
  fs_.Set({});
  EXPECT_TRUE(Eventually([&] { return tier_->Stats().reads_overdue > 0; }));
  EXPECT_TRUE(Eventually([&] { return !ReadBack(*tier_, options_.layout, chain_[1], chain_[0]); }));
  EXPECT_EQ(reads_->answers(0), 0);
  fs_.ReleaseStalled();
  EXPECT_TRUE(reads_->Wait(0).status);
}

TEST_F(DiskTierBreakerTest, AnOpenThatHangsKeepsNoOtherWaiting) {
  options_.overdue_after = Seconds(1000);
  tier_.reset();
  tier_ = DiskTier::Open(options_, fs_).value();
  fs_.Set({.open_stall = 1});
  reads_->Start(*tier_, options_.layout, chain_[0], Root());
  EXPECT_TRUE(Eventually([&] { return fs_.faults() > 0; }));
  fs_.Set({});
  EXPECT_EQ(ReadBack(*tier_, options_.layout, chain_[1], chain_[0]), std::nullopt);
  EXPECT_EQ(reads_->answers(0), 0);
  fs_.ReleaseStalled();
  EXPECT_TRUE(reads_->Wait(0).status);
}

TEST_F(DiskTierBreakerTest, AnOpenThatIsLostForEverIsAnErrorAndNoOthers) {
  fs_.Set({.open_stall = 1});
  reads_->Start(*tier_, options_.layout, chain_[0], Root());
  EXPECT_TRUE(Eventually([&] { return fs_.faults() > 0; }));
  fs_.Set({});
  EXPECT_EQ(reads_->Wait(0).status.error().code, ErrorCode::kIo) << "it is overdue";
  EXPECT_TRUE(Eventually([&] { return !ReadBack(*tier_, options_.layout, chain_[2], chain_[1]); }))
      << "a probe finds that the device answers";
  fs_.ReleaseStalled();
}

// As many as there may be in flight: nothing can be read, and nobody waits for it.
TEST_F(DiskTierBreakerTest, WhenAllReadsAreLostTheRestIsAnswered) {
  fs_.Set({.read_stall = 1});
  for (size_t i = 0; i < 2; ++i) {
    reads_->Start(*tier_, options_.layout, chain_[i], ParentOf(chain_, i));
  }
  EXPECT_TRUE(Eventually([&] { return fs_.faults() >= 2; }));
  fs_.Set({});  // and probes go well
  EXPECT_TRUE(Eventually([&] { return tier_->Stats().reads_overdue == 2; }));
  const auto more = Chain(1, 1);
  EXPECT_TRUE(Eventually(
      [&]() -> bool { return PutChunk(*tier_, options_.layout, more[0], Root()).has_value(); }));
  EXPECT_EQ(ReadBack(*tier_, options_.layout, chain_[2], chain_[1]), ErrorCode::kIo);
  EXPECT_EQ(tier_->Residency(chain_), std::vector<bool>(chain_.size()));
  EXPECT_EQ(reads_->answers(0) + reads_->answers(1), 0);
  EndAndExpectRecovery();
  EXPECT_TRUE(PutChunk(*tier_, options_.layout, chain_[2], chain_[1]));
  EXPECT_EQ(tier_->Stats().writes, chain_.size() + 1) << "nothing is known against the file";
}

TEST_F(DiskTierBreakerTest, AProbeThatIsLostForEverDoesNotKeepTheStoreClosed) {
  fs_.Set({.read_stall = 1});
  reads_->Start(*tier_, options_.layout, chain_[0], Root());
  EXPECT_TRUE(Eventually([&] { return fs_.faults() >= 2; })) << "the read, and a probe";
  fs_.Set({});
  EXPECT_TRUE(Eventually([&] { return !ReadBack(*tier_, options_.layout, chain_[1], chain_[0]); }));
  EXPECT_EQ(reads_->answers(0), 0);
  fs_.ReleaseStalled();
  EXPECT_TRUE(reads_->Wait(0).status);
}

TEST_F(DiskTierBreakerTest, AFewReadsAreInFlightHoweverLargeAChunkIs) {
  options_.max_reads_in_flight = 16;
  options_.max_read_bytes_in_flight = options_.layout.page_bytes() * 3 / 2;
  options_.io_bytes_max = kDirectAlign;  // many requests for each read
  options_.overdue_after = Seconds(1000);
  tier_.reset();
  tier_ = DiskTier::Open(options_, fs_).value();
  EXPECT_EQ(tier_->max_read_bytes_in_flight() / options_.layout.page_bytes(), 4u);
  ReadAll();
  for (size_t i = 0; i < chain_.size(); ++i) EXPECT_TRUE(reads_->Wait(i).status) << i;
  options_.max_reads_in_flight = 2;
  tier_.reset();
  tier_ = DiskTier::Open(options_, fs_).value();
  EXPECT_EQ(tier_->max_read_bytes_in_flight() / options_.layout.page_bytes(), 2u);
}

// As on a file system that is frozen for a snapshot: it reads.
TEST_F(DiskTierBreakerTest, WritesThatHangRefuseFurtherOnesAndNoReads) {
  const auto more = Chain(3, 1);
  fs_.Set({.change_stall = 1});
  std::vector<std::thread> writers;
  std::atomic<int> written{0};
  for (size_t i = 0; i < 2; ++i) {
    writers.emplace_back([&, i] {
      written += PutChunk(*tier_, options_.layout, more[i], ParentOf(more, i)).has_value();
    });
  }
  EXPECT_TRUE(Eventually([&] { return fs_.faults() >= 2; }));
  // What is there already need not be written: this one never hangs.
  const auto refused = [&] { return !PutChunk(*tier_, options_.layout, chain_[0], Root()); };
  EXPECT_TRUE(Eventually(refused));
  EXPECT_FALSE(PutChunk(*tier_, options_.layout, more[2], more[1]));
  EXPECT_EQ(written, 0);
  const auto reads = [&] { return !ReadBack(*tier_, options_.layout, chain_[1], chain_[0]); };
  EXPECT_TRUE(Eventually(reads));
  EXPECT_EQ(written, 0);
  fs_.Set({});
  fs_.ReleaseStalled();
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(written, 2);
  const auto writes = [&]() -> bool {
    return PutChunk(*tier_, options_.layout, more[2], more[1]).has_value();
  };
  EXPECT_TRUE(Eventually(writes));
}

// Reads go to a queue that can be told to fail.
class FailingQueueFileSystem : public FaultyFileSystem {
 public:
  FailingQueueFileSystem() : FaultyFileSystem(FileSystem::Real(), 1) {}
  std::atomic<bool> fails{false};

  Result<std::unique_ptr<IoQueue>> NewQueue(const IoQueueOptions& options) override {
    ASSIGN_OR_RETURN(auto inner, FaultyFileSystem::NewQueue(options));
    return std::make_unique<Queue>(std::move(inner), fails);
  }

 private:
  class Queue : public IoQueue {
   public:
    Queue(std::unique_ptr<IoQueue> inner, std::atomic<bool>& fails)
        : inner_(std::move(inner)), fails_(fails) {}
    bool HasRoom(uint64_t bytes) const override { return inner_->HasRoom(bytes); }
    Status Submit(const IoOp& op) override { return inner_->Submit(op); }
    void Cancel(uint64_t user_data) override { inner_->Cancel(user_data); }
    Status Wait(std::vector<IoCompletion>& completions,
                std::optional<TimePoint> deadline) override {
      if (fails_) return Fail(ErrorCode::kIo, "injected: the ring is broken");
      return inner_->Wait(completions, deadline);
    }
    void Wake() override { inner_->Wake(); }
    int in_flight() const override { return inner_->in_flight(); }

   private:
    const std::unique_ptr<IoQueue> inner_;
    std::atomic<bool>& fails_;
  };
};

TEST(DiskTierQueueTest, AQueueThatFailsCostsMissesAndIsRecoveredFrom) {
  TempDir dir;
  FailingQueueFileSystem fs;
  DiskTierOptions options;
  options.dir = dir.path();
  options.layout = SmallLayout();
  options.root = Root();
  const auto chain = Chain(2);
  Reads reads;  // outlives the tier
  auto tier = DiskTier::Open(options, fs).value();
  ASSERT_TRUE(PutChunk(*tier, options.layout, chain[0], Root()));
  fs.Set({.read_stall = 1});
  const size_t read = reads.Start(*tier, options.layout, chain[0], Root());
  EXPECT_TRUE(Eventually([&] { return fs.faults() > 0; })) << "it is in flight";
  fs.fails = true;
  const size_t next = reads.Start(*tier, options.layout, chain[0], Root());  // wakes the queue
  EXPECT_TRUE(Eventually([&]() -> bool { return !tier->Residency(chain)[0]; }));
  const size_t refused = reads.Start(*tier, options.layout, chain[0], Root());
  EXPECT_FALSE(reads.Wait(refused).status);
  EXPECT_TRUE(PutChunk(*tier, options.layout, chain[1], chain[0])) << "writes need no queue";
  EXPECT_EQ(reads.answers(read), 0) << "its buffer is still the device's";
  fs.Set({});
  fs.ReleaseStalled();
  fs.fails = false;
  EXPECT_TRUE(reads.Wait(read).status);
  (void)reads.Wait(next);  // which may have been in flight, or refused
  EXPECT_TRUE(Eventually([&]() -> bool { return tier->Residency(chain)[0]; }));
  EXPECT_EQ(ReadBack(*tier, options.layout, chain[1], chain[0]), std::nullopt);
}

// A file system of memory, gone with the test.
class SmallFileSystem {
 public:
  explicit SmallFileSystem(const char* size) {
    mounted_ = mount("tmpfs", dir_.path().c_str(), "tmpfs", 0, size) == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) umount2(dir_.path().c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const std::string& path() const { return dir_.path(); }

 private:
  const TempDir dir_;
  bool mounted_ = false;
};

// Puts 80 MiB of chunks, more than fit: each must be taken.
void ExpectKeepsTakingNewChunks(const SmallFileSystem& disk) {
  DiskTierOptions options;
  options.dir = disk.path();
  options.layout = SmallLayout();
  options.root = Root();
  options.capacity_bytes = 1ull << 30;
  auto tier = DiskTier::Open(options, FileSystem::Real()).value();
  const auto chain = Chain(static_cast<int>((80 << 20) / options.layout.page_bytes()));
  size_t refused = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    refused += !PutChunk(*tier, options.layout, chain[i], ParentOf(chain, i));
  }
  EXPECT_EQ(refused, 0u);
  EXPECT_GT(tier->Stats().evicted, 0u);
  EXPECT_TRUE(tier->Residency(chain).back());
  EXPECT_EQ(ReadBack(*tier, options.layout, chain.back(), ParentOf(chain, chain.size() - 1)),
            std::nullopt);
}

TEST(FullFileSystemTest, SmallerThanTheCapacityKeepsTakingNewChunks) {
  SmallFileSystem disk("size=64m,mode=0700");
  if (!disk.mounted()) GTEST_SKIP() << "only root may mount";
  ExpectKeepsTakingNewChunks(disk);
}

// A directory for each first byte of a key, and some files.
TEST(FullFileSystemTest, OneThatHasNoMoreInodesKeepsTakingNewChunks) {
  SmallFileSystem disk("size=200m,nr_inodes=400,mode=0700");
  if (!disk.mounted()) GTEST_SKIP() << "only root may mount";
  ExpectKeepsTakingNewChunks(disk);
}

TEST(FullFileSystemTest, AShareOfItStaysFreeForOthers) {
  SmallFileSystem disk("size=64m,mode=0700");
  if (!disk.mounted()) GTEST_SKIP() << "only root may mount";
  DiskTierOptions options;
  options.dir = disk.path() + "/store";
  options.layout = SmallLayout();
  options.root = Root();
  options.capacity_bytes = 1ull << 30;
  options.free_share_min = 0.25;
  options.upkeep_interval = Seconds(0.01);
  auto tier = DiskTier::Open(options, FileSystem::Real()).value();
  const auto free = [&] { return FileSystem::Real().Space(disk.path())->free_bytes; };
  const auto chain = Chain(static_cast<int>((60 << 20) / options.layout.page_bytes()));
  for (size_t i = 0; i < chain.size(); ++i) {
    ASSERT_TRUE(PutChunk(*tier, options.layout, chain[i], ParentOf(chain, i))) << i;
  }
  EXPECT_TRUE(Eventually([&] { return free() >= 16 << 20; }));
  EXPECT_LE(free(), 17u << 20) << "and not much more";
  // Others take most of what is free, at once, and the store makes way.
  const int others = open((disk.path() + "/others").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  ASSERT_EQ(posix_fallocate(others, 0, 12 << 20), 0);
  close(others);
  EXPECT_TRUE(Eventually([&] { return free() >= 16 << 20; }));
  EXPECT_TRUE(tier->Residency(chain).back());
  EXPECT_TRUE(Eventually([&] { return tier->Stats().free_bytes == free(); }));
}

}  // namespace
}  // namespace kvcake
