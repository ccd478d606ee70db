// A process that writes, evicts and promotes and is killed at any moment leaves whole chunks or
// none, and all that it had reported to be kept.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "store/disk_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

constexpr int kChains = 8, kChunks = 8;
constexpr uint64_t kSmallCapacity = 24;  // chunks

DiskTierOptions Options(const std::string& dir, uint64_t chunks) {
  DiskTierOptions options;
  options.dir = dir;
  options.layout = {.layers = 6, .kv_heads = 2, .head_dim = 64, .chunk_tokens = 64};
  options.root = Root();
  options.temporary_age_min = Seconds(0);  // the writer is known to be dead
  options.capacity_bytes = chunks * options.layout.page_bytes();
  return options;
}

// One step of the child: what it tells its parent through a pipe.
struct Step {
  char what;  // 'k' a chunk has been kept, 'p' promoted; 'e' it is about to be evicted
  int8_t chain, chunk;
};

// As the engine does: what was loaded from one tier is written to another.
bool Promote(Tier& from, Tier& to, const KvLayout& layout, const ChunkKey& key,
             const ChunkKey& parent) {
  Reads reads;
  const size_t read = reads.Start(from, layout, key, parent);
  const ReadResult result = reads.Wait(read);
  return result.status &&
         to.Put({key, parent, result.numeric_path, reads.landing(read).span()}).has_value();
}

// Runs in the child until it is killed. The slow store has the chains of odd number.
[[noreturn]] void WorkForEver(const DiskTierOptions& options, const DiskTierOptions& slow_options,
                              uint64_t seed, int pipe) {
  const auto tell = [&](const Step& step) {
    if (write(pipe, &step, sizeof(step)) != sizeof(step)) _exit(2);
  };
  auto tier = DiskTier::Open(options);
  auto slow = DiskTier::Open(slow_options);
  if (!tier || !slow) _exit(1);
  std::mt19937_64 random(seed);
  while (true) {
    const auto c = static_cast<int8_t>(random() % kChains),
               i = static_cast<int8_t>(random() % kChunks);
    const auto chain = Chain(kChunks, c);
    if (random() % 4 == 0) {
      tell({'e', c, i});
      if (!(*tier)->Evict(chain[i])) _exit(3);
    } else if (c % 2 != 0) {
      if (!Promote(**slow, **tier, options.layout, chain[i], ParentOf(chain, i))) _exit(4);
      tell({'p', c, i});
    } else if (PutChunk(**tier, options.layout, chain[i], ParentOf(chain, i))) {
      tell({'k', c, i});
    }
  }
}

class CrashRun {
 public:
  CrashRun() {
    auto slow = DiskTier::Open(slow_).value();
    for (int c = 1; c < kChains; c += 2) {
      const auto chain = Chain(kChunks, c);
      for (int i = 0; i < kChunks; ++i) {
        EXPECT_TRUE(PutChunk(*slow, slow_.layout, chain[i], ParentOf(chain, i)));
      }
    }
  }

  // Lets a child live for a while, kills it, and checks what it has left.
  void Round(uint64_t chunks) {
    const DiskTierOptions options = Options(dir_.path() + "/fast", chunks);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const uint64_t seed = random_();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) WorkForEver(options, slow_, seed, ends[1]);
    close(ends[1]);
    std::thread reader([&] {
      Step step;
      while (read(ends[0], &step, sizeof(step)) == sizeof(step)) {
        step.what != 'e' ? (void)kept_.emplace(step.chain, step.chunk)
                         : (void)kept_.erase({step.chain, step.chunk});
        promoted_ += step.what == 'p';
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + random_() % life_us_));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    reader.join();
    close(ends[0]);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed: " << WEXITSTATUS(status);
    Check(options, /*may_be_evicted=*/chunks == kSmallCapacity);
  }

  uint64_t seen() const { return seen_; }
  uint64_t reported() const { return reported_; }
  uint64_t promoted() const { return promoted_; }
  // A row of the fault table in docs/operations.md: what was served wrong or lost has failed us.
  void PrintRow(const char* what, const char* lost) const {
    if (testing::Test::HasFailure()) return;
    std::printf("| %s | %d | 0 | %s | %.3f s |\n", what, kills_, lost, restart_s_);
  }

 private:
  void Check(const DiskTierOptions& options, bool may_be_evicted) {
    const TimePoint start = Clock::Real().Now();
    auto tier = DiskTier::Open(options).value();
    restart_s_ = std::max(restart_s_, (Clock::Real().Now() - start).count());
    ++kills_;
    EXPECT_EQ(tier->Stats().quarantined, 0u);
    for (int c = 0; c < kChains; ++c) {
      const auto chain = Chain(kChunks, c);
      const auto resident = tier->Residency(chain);
      for (int i = 0; i < kChunks; ++i) {
        const auto error = ReadBack(*tier, options.layout, chain[i], ParentOf(chain, i));
        EXPECT_EQ(error, resident[i] ? std::nullopt : std::optional(ErrorCode::kNotFound));
        seen_ += resident[i];
        const bool kept = kept_.contains({c, i});
        reported_ += kept && !may_be_evicted;
        EXPECT_TRUE(resident[i] || !kept || may_be_evicted) << "reported, and lost";
        if (!resident[i]) kept_.erase({c, i});
      }
    }
    // Where the child is slow (an emulator), it lives longer, or nothing would be tested.
    if (seen_ == 0) life_us_ = std::min<uint64_t>(2 * life_us_, 4'000'000);
    EXPECT_LE(tier->Stats().bytes, options.capacity_bytes + options.layout.page_bytes());
    auto slow = DiskTier::Open(slow_).value();
    EXPECT_EQ(slow->Stats().chunks, kChains / 2 * kChunks) << "promoting takes nothing away";
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
      EXPECT_EQ(entry.path().string().find(".tmp."), std::string::npos) << "not swept";
    }
  }

  TempDir dir_;
  const DiskTierOptions slow_ = Options(dir_.path() + "/slow", kChains* kChunks);
  std::mt19937_64 random_{1};
  std::set<std::pair<int, int>> kept_;  // reported, and not said to be evicted since
  uint64_t seen_ = 0, reported_ = 0, promoted_ = 0;
  uint64_t life_us_ = 60000;
  int kills_ = 0;
  double restart_s_ = 0;  // the longest
};

TEST(DiskTierCrashTest, AKilledProcessLeavesWholeChunksAndAllThatItReported) {
  CrashRun run;
  for (int round = 0; round < 60 && !testing::Test::HasFailure(); ++round) {
    run.Round(/*chunks=*/kChains * kChunks + 1);  // nothing is evicted but by name
  }
  EXPECT_GT(run.seen(), 0u);
  EXPECT_GT(run.reported(), 0u);
  EXPECT_GT(run.promoted(), 0u);
  run.PrintRow("killed while writing, evicting by name and promoting", "0");
}

TEST(DiskTierCrashTest, AKilledProcessThatMakesRoomLeavesWholeChunksOrNone) {
  CrashRun run;
  for (int round = 0; round < 40 && !testing::Test::HasFailure(); ++round) {
    run.Round(kSmallCapacity);
  }
  EXPECT_GT(run.seen(), 0u);
  run.PrintRow("killed while making room as well", "not asked");
}

}  // namespace
}  // namespace kvcake
