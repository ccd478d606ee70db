// Faults of the device and the file system, one row each: what is asked meanwhile costs misses,
// what is served is right, and the tier recovers by itself. Prints the table of docs/operations.md.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "io/faulty_file_system.h"
#include "store/disk_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
namespace stdfs = std::filesystem;

constexpr int kRounds = 20;
constexpr size_t kKept = 8;     // chunks there before the fault
constexpr size_t kChunks = 12;  // the others are tried to be written during it

struct World {
  TempDir dir;
  FaultyFileSystem fs{FileSystem::Real(), 1};
  DiskTierOptions options;
  std::unique_ptr<DiskTier> tier;

  std::string base() const { return options.dir + "/v1"; }
};

struct Fault {
  const char* name;
  std::function<void(World&)> begin, end;
  bool reads = false;       // fail while it lasts
  bool writes = false;      // fail while it lasts
  bool gone = false;        // what was kept is
  bool holds = false;       // reads, for ever
  const char* remedy = "";  // in the status of a write
};

FileFaults Changes(int error) { return {.change_error = 1, .change_errno = error}; }

Fault Injected(const char* name, FileFaults faults, bool reads, bool writes, const char* remedy) {
  return {.name = name,
          .begin = [faults](World& w) { w.fs.Set(faults); },
          .end =
              [](World& w) {
                w.fs.Set({});
                w.fs.ReleaseStalled();
              },
          .reads = reads,
          .writes = writes,
          .remedy = remedy};
}

Fault Held(const char* name, FileFaults faults) {
  Fault fault = Injected(name, faults, /*reads=*/true, /*writes=*/false, "");
  fault.holds = true;
  return fault;
}

const Fault kFaults[] = {
    Injected("disk full", {.change_error = 1, .change_errno = ENOSPC}, false, true, "free space"),
    Injected("quota exceeded", Changes(EDQUOT), false, true, "quota"),
    Injected("read-only file system", Changes(EROFS), false, true, "writable"),
    Injected("no permission to write", Changes(EACCES), false, true, "let this user"),
    Injected("no permission to read", {.open_error = 1, .read_errno = EACCES}, true, false, ""),
    Injected("EIO on read", {.read_error = 1}, true, false, ""),
    Injected("EIO on write", Changes(EIO), false, true, "kernel's log"),
    Held("a read that never returns", {.read_stall = 1}),
    Held("an open that never returns", {.open_stall = 1}),
    {.name = "the directory is removed",
     .begin = [](World& w) { stdfs::remove_all(w.options.dir); },
     .end = [](World&) {},
     .gone = true},
    {.name = "the directory is a file",
     .begin =
         [](World& w) {
           stdfs::rename(w.base(), w.options.dir + "/aside");
           std::ofstream(w.base()) << "a file";
         },
     .end =
         [](World& w) {
           stdfs::remove(w.base());
           stdfs::rename(w.options.dir + "/aside", w.base());
         },
     .reads = true,
     .writes = true,
     .remedy = ""},
};

class DiskTierFaultTest : public testing::TestWithParam<Fault> {
 protected:
  DiskTierFaultTest() {
    world_.options.dir = world_.dir.path() + "/store";
    world_.options.layout = layout_;
    world_.options.root = Root();
    world_.options.missing_ttl = Seconds(0);
    world_.options.overdue_after = Seconds(0.2);
    world_.options.probe_interval = Seconds(0.01);
    world_.options.failures_max = 3;
    world_.tier = DiskTier::Open(world_.options, world_.fs).value();
  }
  Status Put(size_t i) { return PutChunk(*world_.tier, layout_, chain_[i], ParentOf(chain_, i)); }

  // The chunk, when the tier serves it; its bytes are compared. A device that holds a read for ever
  // answers it when the fault has gone.
  bool Serves(size_t i, Seconds patience = Seconds(60)) {
    const size_t read = reads_->Start(*world_.tier, layout_, chain_[i], ParentOf(chain_, i));
    const TimePoint deadline = Clock::Real().Now() + patience;
    while (reads_->answers(read) == 0 && Clock::Real().Now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (reads_->answers(read) == 0 || !reads_->Wait(read).status) return false;
    wrong_ += !HoldsChunk(chain_[i], reads_->landing(read));
    return true;
  }

  // All that is asked for while the fault lasts.
  void During() {
    for (size_t i = 0; i < kKept; ++i) {
      ++tried_;
      const bool served = Serves(i, GetParam().holds ? Seconds(0.3) : Seconds(60));
      EXPECT_EQ(served, !GetParam().reads && !GetParam().gone) << i;
    }
    for (size_t i = kKept; i < kChunks && !world_.tier->Stats().reads_overdue; ++i) {
      ++tried_;
      const auto status = Put(i);
      EXPECT_EQ(status.has_value(), !GetParam().writes && !GetParam().reads) << i;
      if (status) continue;
      EXPECT_FALSE(status.error().message.empty());
      if (GetParam().writes) {
        EXPECT_NE(status.error().message.find(GetParam().remedy), std::string::npos)
            << status.error().message;
      }
    }
  }

  // Until everything is served again; what was lost is written anew, as the engine would.
  void Recover() {
    const TimePoint start = Clock::Real().Now();
    const TimePoint deadline = start + Seconds(60);
    std::vector<bool> served(kChunks);
    bool all = false;
    while (!all && Clock::Real().Now() < deadline) {
      all = true;
      const auto resident = world_.tier->Residency(chain_);
      for (size_t i = 0; i < kChunks; ++i) {
        if (served[i]) continue;
        served[i] = resident[i] && Serves(i);
        if (!served[i] && Put(i)) served[i] = Serves(i);
        all = all && served[i];
      }
    }
    ASSERT_TRUE(all) << "not recovered";
    recovery_s_ = std::max(recovery_s_, (Clock::Real().Now() - start).count());
  }

  const KvLayout layout_ = SmallLayout();
  const std::vector<ChunkKey> chain_ = Chain(kChunks);
  std::optional<Reads> reads_{std::in_place};  // outlives the tier
  World world_;
  int tried_ = 0, wrong_ = 0, lost_ = 0;
  double recovery_s_ = 0;
};

TEST_P(DiskTierFaultTest, CostsMissesAndIsRecoveredFrom) {
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    for (size_t i = 0; i < kChunks; ++i) {
      ASSERT_TRUE(i < kKept ? Put(i) : world_.tier->Evict(chain_[i])) << i;
    }
    GetParam().begin(world_);
    During();
    GetParam().end(world_);
    for (size_t i = 0; i < kKept; ++i) {
      lost_ += !stdfs::exists(StoreDir(world_.options.dir).ChunkPath({Root(), chain_[i]}));
    }
    Recover();
  }
  EXPECT_EQ(wrong_, 0);
  if (!GetParam().gone) {
    EXPECT_EQ(lost_, 0);
  }
  std::printf("| %s | %d | %d | %d | %.3f s |\n", GetParam().name, tried_, wrong_, lost_,
              recovery_s_);
}

INSTANTIATE_TEST_SUITE_P(Faults, DiskTierFaultTest, testing::ValuesIn(kFaults),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !isalnum(c); }, '_');
                           return name;
                         });

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
  void ReadAll() {
    for (size_t i = 0; i < chain_.size(); ++i) {
      reads_->Start(*tier_, options_.layout, chain_[i], ParentOf(chain_, i));
    }
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
    while (tier_->Residency(chain_) != std::vector<bool>(chain_.size(), true)) {
      std::this_thread::yield();
    }
    EXPECT_EQ(ReadBack(*tier_, options_.layout, chain_[5], chain_[4]), std::nullopt);
  }

  TempDir dir_;
  FaultyFileSystem fs_{FileSystem::Real(), 1};
  DiskTierOptions options_;
  const std::vector<ChunkKey> chain_ = Chain(40);
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
  EXPECT_EQ(fs_.faults(), 1u) << "one open waits, and no other is tried";
  ExpectLeftAlone();
  EndAndExpectRecovery();
}

TEST_F(DiskTierBreakerTest, ReadsAreCancelledAndTheTierEndsWhileAnOpenHangs) {
  fs_.Set({.open_stall = 1});
  const size_t read = reads_->Start(*tier_, options_.layout, chain_[0], Root());
  while (fs_.faults() == 0) std::this_thread::yield();
  tier_->Cancel(reads_->id(read));
  EXPECT_EQ(reads_->Wait(read).status.error().code, ErrorCode::kCancelled);
  reads_->Start(*tier_, options_.layout, chain_[1], chain_[0]);
  std::thread end([&] { tier_.reset(); });
  EXPECT_FALSE(reads_->Wait(1).status);
  fs_.Set({});
  fs_.ReleaseStalled();
  end.join();
}

TEST_F(DiskTierBreakerTest, ALookThatHangsCostsOneWait) {
  std::atomic<int> heard{0};
  const auto look = [&] {
    return tier_->Look({.keys = Chain(3, 1), .found = [&](size_t, const std::vector<bool>& held) {
                          heard += static_cast<int>(held.size());
                          return true;
                        }});
  };
  fs_.Set({.stat_stall = 1});
  ASSERT_TRUE(look());
  while (tier_->Residency(chain_)[0]) std::this_thread::yield();  // until it is overdue
  EXPECT_FALSE(look()) << "nobody waits for the same again";
  EXPECT_EQ(heard, 0);
  EndAndExpectRecovery();
  while (heard < 3) std::this_thread::yield();
  while (!look()) std::this_thread::yield();  // once what was not there may be looked for again
  tier_.reset();                              // before what it tells goes
}

// One lost request on a device that is otherwise well: probes find out.
TEST_F(DiskTierBreakerTest, AReadThatIsLostForEverDoesNotCloseTheStore) {
  fs_.Set({.read_stall = 1});
  reads_->Start(*tier_, options_.layout, chain_[0], Root());
  while (fs_.faults() == 0) std::this_thread::yield();
  fs_.Set({});
  while (tier_->Stats().reads_overdue == 0) std::this_thread::yield();
  while (ReadBack(*tier_, options_.layout, chain_[1], chain_[0])) std::this_thread::yield();
  EXPECT_EQ(reads_->answers(0), 0);
  fs_.ReleaseStalled();
  EXPECT_TRUE(reads_->Wait(0).status);
}

}  // namespace
}  // namespace kvcake
