#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <system_error>

#include "base/cpu.h"

namespace kvcake {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, EveryIndexRunsOnceOnAWorkerOfThePool) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.size(), GetParam());
  for (int64_t n : {0, 1, 2, 3, 17, 1000}) {
    for (int repeat = 0; repeat < 50; ++repeat) {
      std::vector<std::atomic<int>> runs(n);
      std::atomic<bool> worker_ok{true};
      pool.ParallelFor(n, [&](int64_t i, int worker) {
        runs[i].fetch_add(1);
        if (worker < 0 || worker >= pool.size()) worker_ok = false;
      });
      for (auto& count : runs) ASSERT_EQ(count.load(), 1);
      ASSERT_TRUE(worker_ok);
    }
  }
}

TEST(PinnedThreadPoolTest, WorkersStayOnTheirCpus) {
  const std::vector<int> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one CPU";
  const std::vector<int> cpus = {allowed[1], allowed[0]};
  ThreadPool pool(2, cpus);
  std::atomic<bool> pinned{true};
  std::atomic<int> seen{0};
  while (seen == 0) {
    pool.ParallelFor(64, [&](int64_t, int worker) {
      if (worker == 0) return;
      ++seen;
      if (AllowedCpus() != std::vector<int>{allowed[0]}) pinned = false;
    });
  }
  EXPECT_TRUE(pinned);
  EXPECT_EQ(AllowedCpus(), allowed) << "the caller is not moved";
}

// From now on this process gets so many bytes more: room for the stacks of a few threads.
bool LimitAddressSpace(uint64_t more) {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + more;
  const rlimit limits = {.rlim_cur = limit, .rlim_max = limit};
  return pages > 0 && setrlimit(RLIMIT_AS, &limits) == 0;
}

TEST(ThreadPoolDeathTest, AThreadThatCannotBeStartedIsItsMakersToHearOf) {
  const auto make = [] {
    if (!LimitAddressSpace(100 << 20)) _exit(2);
    try {
      ThreadPool pool(1024);
    } catch (const std::system_error&) {
      _exit(0);
    }
    _exit(1);
  };
  EXPECT_EXIT(make(), testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolTest, testing::Values(1, 2, 3, 8));

}  // namespace
}  // namespace kvcake
