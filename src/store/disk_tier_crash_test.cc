// A writer that is killed at any moment leaves whole chunks or none.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "store/disk_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

DiskTierOptions Options(const std::string& dir) {
  DiskTierOptions options;
  options.dir = dir;
  options.layout = {.layers = 6, .kv_heads = 2, .head_dim = 64, .chunk_tokens = 64};
  options.root = Root();
  options.temporary_age_min = Seconds(0);  // the writer is known to be dead
  options.capacity_bytes = 24 * options.layout.page_bytes();
  return options;
}

// Runs in the child until it is killed.
[[noreturn]] void WriteForEver(const std::string& dir) {
  auto tier = DiskTier::Open(Options(dir));
  if (!tier) _exit(1);
  for (int seed = 0;; seed = (seed + 1) % 8) {
    const auto chain = Chain(8, seed);
    for (size_t i = 0; i < chain.size(); ++i) {
      (void)PutChunk(**tier, Options(dir).layout, chain[i], ParentOf(chain, i));
    }
  }
}

TEST(DiskTierCrashTest, AKilledWriterLeavesWholeChunksOrNone) {
  TempDir dir;
  const KvLayout layout = Options(dir.path()).layout;
  std::mt19937 random(1);
  uint64_t seen = 0;
  uint64_t life_us = 60000;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) WriteForEver(dir.path());
    std::this_thread::sleep_for(std::chrono::microseconds(5000 + random() % life_us));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer could not open the store";

    auto tier = DiskTier::Open(Options(dir.path()));
    ASSERT_TRUE(tier);
    EXPECT_EQ((*tier)->Stats().quarantined, 0u);
    for (int seed = 0; seed < 8; ++seed) {
      const auto chain = Chain(8, seed);
      const auto resident = (*tier)->Residency(chain);
      for (size_t i = 0; i < chain.size(); ++i) {
        const auto error = ReadBack(**tier, layout, chain[i], ParentOf(chain, i));
        EXPECT_EQ(error, resident[i] ? std::nullopt : std::optional(ErrorCode::kNotFound));
        seen += resident[i];
      }
    }
    // Where the writer is slow (an emulator), it lives longer, or nothing would be tested.
    if (seen == 0) life_us = std::min<uint64_t>(2 * life_us, 4'000'000);
    EXPECT_LE((*tier)->Stats().bytes, 25 * layout.page_bytes());
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.path())) {
      EXPECT_EQ(entry.path().string().find(".tmp."), std::string::npos) << "not swept";
    }
  }
  EXPECT_GT(seen, 0u);
}

}  // namespace
}  // namespace kvcake
