#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <future>
#include <latch>
#include <system_error>
#include <thread>

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

// A body works on its caller's stack, which is gone when the call has returned.
TEST(SlowWorkerTest, AllThatHaveBegunAreWaitedForNotOnlyTheFirstToBeDone) {
  constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  for (int call = 0; call < 300; ++call) {
    std::latch all(kThreads);
    std::atomic<int> done = 0;
    pool.ParallelFor(kThreads, [&](int64_t, int worker) {
      all.arrive_and_wait();  // so that each of them has one
      for (int i = 0; worker == 2 && i < 200; ++i) std::this_thread::yield();
      ++done;
    });
    ASSERT_EQ(done, kThreads) << call;
    for (int i = 0; i < 100; ++i) std::this_thread::yield();  // they may go to sleep, to be woken
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
      std::this_thread::yield();  // there may be one core for both
      if (worker == 0) return;
      ++seen;
      if (AllowedCpus() != std::vector<int>{allowed[0]}) pinned = false;
    });
  }
  EXPECT_TRUE(pinned);
  EXPECT_EQ(AllowedCpus(), allowed) << "the caller is not moved";
}

std::atomic<bool> g_away, g_stay_away;

// A worker that the kernel gives no core for a while, as beside another program that computes.
TEST(AbsentWorkerTest, OneThatHasNotComeYetIsNotWaitedFor) {
  ThreadPool pool(3);
  std::atomic<pthread_t> absent = 0;
  while (absent == 0) {
    pool.ParallelFor(64, [&](int64_t, int worker) {
      if (worker == 1) absent = pthread_self();
      std::this_thread::yield();  // there may be one core for all
    });
  }
  g_stay_away = true;
  g_away = false;
  struct sigaction stay = {}, before;
  stay.sa_handler = [](int) {
    for (g_away = true; g_stay_away;) usleep(100);
  };
  ASSERT_EQ(sigaction(SIGUSR1, &stay, &before), 0);
  // TSan runs a handler at the thread's next atomic operation, and nothing wakes a worker that has
  // gone to sleep since: each further signal does.
  while (!g_away) {
    ASSERT_EQ(pthread_kill(absent, SIGUSR1), 0);
    std::this_thread::yield();
  }

  std::atomic<int> runs = 0, by_absent = 0;
  const auto call_often = [&] {
    for (int call = 0; call < 100; ++call) {
      pool.ParallelFor(17, [&](int64_t, int worker) {
        ++runs;
        by_absent += worker == 1;
        std::this_thread::yield();
      });
    }
  };
  auto calls = std::async(std::launch::async, call_often);
  EXPECT_EQ(calls.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(by_absent, 0);
  g_stay_away = false;
  calls.get();
  EXPECT_EQ(runs, 100 * 17);

  while (by_absent == 0) call_often();  // it has come back, though it has missed many calls
  sigaction(SIGUSR1, &before, nullptr);
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
  // A process of its own, which clang's address sanitizer gives no second stack for each thread: it
  // would end the process for want of that one.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("ASAN_OPTIONS", "detect_stack_use_after_return=0", /*overwrite=*/1);
  EXPECT_EXIT(make(), testing::ExitedWithCode(0), "");
}

// Calls so short that workers come to them late, when the next one begins.
TEST(LateWorkerTest, WhoComesToACallThatIsOverHasNoPartInTheNext) {
  ThreadPool pool(3);
  for (int call = 0; call < 20000; ++call) {
    std::array<std::atomic<int>, 2> runs = {};
    pool.ParallelFor(2, [&](int64_t i, int) { ++runs[i]; });
    ASSERT_TRUE(runs[0] == 1 && runs[1] == 1) << call;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolTest, testing::Values(1, 2, 3, 8));

}  // namespace
}  // namespace kvcake
