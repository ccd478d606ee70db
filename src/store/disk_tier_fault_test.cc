// Faults of the device and the file system, one row each: what is asked meanwhile costs misses,
// what is served is right, and the tier recovers by itself. Prints the table of docs/operations.md.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "io/faulty_file_system_testing.h"
#include "store/disk_tier.h"
#include "store/store_dir.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
namespace stdfs = std::filesystem;

constexpr int kRounds = 20, kHoldRounds = 10;
constexpr Seconds kWhile{0.6};     // longer than what is not answered takes to be overdue
constexpr size_t kKept = 8;        // chunks there before the fault
constexpr size_t kAllChunks = 12;  // the others are tried to be written during it

struct FaultyWorld {
  TempDir dir;
  FaultyFileSystem fs{FileSystem::Real(), 1};
  DiskTierOptions options;
  std::unique_ptr<DiskTier> tier;

  std::string base() const { return options.dir + "/v1"; }
};

struct Fault {
  const char* name;
  std::function<void(FaultyWorld&)> begin, end;
  bool reads = false;       // fail while it lasts
  bool writes = false;      // fail while it lasts
  bool gone = false;        // what was kept is
  bool holds = false;       // what fails is not answered while it lasts
  bool durable = false;     // of a store that is
  const char* remedy = "";  // in the status of a write
};

FileFaults Changes(int error) { return {.change_error = 1, .change_errno = error}; }

Fault Injected(const char* name, FileFaults faults, bool reads, bool writes, const char* remedy) {
  return {.name = name,
          .begin = [faults](FaultyWorld& w) { w.fs.Set(faults); },
          .end =
              [](FaultyWorld& w) {
                w.fs.Set({});
                w.fs.ReleaseStalled();
              },
          .reads = reads,
          .writes = writes,
          .remedy = remedy};
}

// Where reads are not answered, writes are refused too.
Fault Stuck(const char* name, FileFaults faults, bool reads) {
  Fault fault = Injected(name, faults, reads, /*writes=*/true, "");
  fault.holds = true;
  return fault;
}

Fault Durable(Fault fault) {
  fault.durable = true;
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
    Injected("EIO on examining a file", {.info_error = 1}, true, false, ""),
    Injected("EIO on listing a directory", {.list_error = 1}, false, false, ""),
    Durable(
        Injected("EIO on fsync, with --durable", {.sync_error = 1}, false, true, "kernel's log")),
    Stuck("a read that never returns", {.read_stall = 1}, /*reads=*/true),
    Stuck("an open that never returns", {.open_stall = 1}, /*reads=*/true),
    Stuck("a write that never returns", {.write_stall = 1}, /*reads=*/false),
    Stuck("a rename that never returns", {.rename_stall = 1}, /*reads=*/false),
    Stuck("a stat that never returns", {.stat_stall = 1}, /*reads=*/false),
    Durable(Stuck("an fsync that never returns, with --durable", {.sync_stall = 1},
                  /*reads=*/false)),
    {.name = "the directory is removed",
     .begin = [](FaultyWorld& w) { stdfs::remove_all(w.options.dir); },
     .end = [](FaultyWorld&) {},
     .gone = true},
    {.name = "the directory is a file",
     .begin =
         [](FaultyWorld& w) {
           stdfs::rename(w.base(), w.options.dir + "/aside");
           std::ofstream(w.base()) << "a file";
         },
     .end =
         [](FaultyWorld& w) {
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
    // Where nothing hangs, a test that is itself kept waiting must not make the device seem dead.
    world_.options.overdue_after = GetParam().holds ? Seconds(0.5) : Seconds(60);
    world_.options.probe_interval = Seconds(0.01);
    world_.options.failures_max = 3;
    world_.options.durable = GetParam().durable;
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

  // What a writer hears of it, if anything within a while.
  std::optional<Status> Written(size_t i) {
    auto written = std::async(std::launch::async, [this, i] { return Put(i); });
    if (GetParam().holds && written.wait_for(kWhile) == std::future_status::timeout) {
      held_.push_back(std::move(written));
      return std::nullopt;
    }
    return written.get();
  }

  // All that is asked for while the fault lasts.
  void During() {
    for (size_t i = 0; i < kKept; ++i) {
      ++tried_;
      if (!GetParam().reads && !GetParam().gone) {
        EXPECT_TRUE(Eventually([&] { return Serves(i); })) << i << ": a slow test is overdue, too";
      } else {
        EXPECT_FALSE(Serves(i, GetParam().holds ? kWhile : Seconds(60))) << i;
      }
    }
    for (size_t i = kKept; i < kAllChunks; ++i) {
      ++tried_;
      const auto status = Written(i);
      EXPECT_EQ(status && *status, !GetParam().writes) << i;
      if (!status || *status) continue;
      EXPECT_NE(status->error().message.find(GetParam().remedy), std::string::npos)
          << status->error().message;
    }
    EXPECT_LT(held_.size(), kAllChunks - kKept) << "once one is overdue the others are refused";
  }

  void End() {
    GetParam().end(world_);
    for (auto& written : held_) (void)written.get();
    held_.clear();
  }

  // Until everything is served again; what was lost is written anew, as the engine would.
  void Recover() {
    const TimePoint start = Clock::Real().Now();
    const TimePoint deadline = start + Seconds(60);
    std::vector<bool> served(kAllChunks);
    bool all = false;
    while (!all && Clock::Real().Now() < deadline) {
      all = true;
      const auto resident = world_.tier->Residency(chain_);
      for (size_t i = 0; i < kAllChunks; ++i) {
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
  const std::vector<ChunkKey> chain_ = Chain(kAllChunks);
  std::optional<Reads> reads_{std::in_place};  // outlives the tier
  FaultyWorld world_;
  std::vector<std::future<Status>> held_;  // writes that have not returned
  int tried_ = 0, wrong_ = 0, lost_ = 0;
  double recovery_s_ = 0;
};

TEST_P(DiskTierFaultTest, CostsMissesAndIsRecoveredFrom) {
  const int rounds = GetParam().holds ? kHoldRounds : kRounds;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    for (size_t i = 0; i < kAllChunks; ++i) {
      ASSERT_TRUE(i < kKept ? Put(i) : world_.tier->Evict(chain_[i])) << i;
    }
    GetParam().begin(world_);
    During();
    End();
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

}  // namespace
}  // namespace kvcake
