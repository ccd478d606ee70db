// A disk tier where the system forbids what makes it fast, as containers and ordinary users meet
// it: it works, and says once what is slow.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log_testing.h"
#include "base/seccomp_testing.h"
#include "store/disk_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

constexpr int kWorks = 0, kFails = 1, kCannotForbid = 2, kDidNotWarnOnce = 3;

// From now on io_uring_setup fails, as under a container's seccomp profile.
bool ForbidUring() {
  constexpr uint32_t kSetup[] = {__NR_io_uring_setup};
  return ForbidCalls(kSetup, EPERM);
}

bool ForbidLockedMemory() {
  const rlimit none = {0, 0};
  return setrlimit(RLIMIT_MEMLOCK, &none) == 0;
}

// Writes and reads chunks by two tiers.
bool Works(const std::string& dir) {
  DiskTierOptions options;
  options.dir = dir;
  options.layout = SmallLayout();
  options.root = Root();
  const auto chain = Chain(20);
  for (int life = 0; life < 2; ++life) {
    auto tier = DiskTier::Open(options);
    if (!tier) return false;
    for (size_t i = 0; i < chain.size(); ++i) {
      if (life == 0 && !PutChunk(**tier, options.layout, chain[i], ParentOf(chain, i))) {
        return false;
      }
      if (ReadBack(**tier, options.layout, chain[i], ParentOf(chain, i))) return false;
    }
  }
  return true;
}

// In a process of its own: what is forbidden stays so.
int InChild(bool (*forbid)(), const std::string& warning) {
  TempDir dir;
  const pid_t child = fork();
  if (child == 0) {
    if (!forbid()) _exit(kCannotForbid);
    const testing_util::CapturedLog log;
    if (!Works(dir.path())) _exit(kFails);
    _exit(warning.empty() || log.Count(warning) == 1 ? kWorks : kDidNotWarnOnce);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST(DiskTierSandboxTest, WithoutIoUringHelperThreadsReadAndOneWarningSaysSo) {
  const int outcome = InChild(ForbidUring, "allow io_uring");
  if (outcome == kCannotForbid) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(outcome, kWorks);
}

TEST(DiskTierSandboxTest, WithoutLockedMemoryNothingIsMissed) {
  EXPECT_EQ(InChild(ForbidLockedMemory, ""), kWorks);
}

}  // namespace
}  // namespace kvcake
