#include "base/worker_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <set>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "base/cpu.h"
#include "base/seccomp_testing.h"

namespace kvcake {
namespace {

TEST(WorkerThreadsTest, FunctionsThatWaitForEachOtherRunTogether) {
  constexpr int kThreads = 4;
  WorkerThreads threads(kThreads);
  for (int round = 0; round < 300; ++round) {  // of new threads, then of idle ones
    const auto all = std::make_shared<std::latch>(kThreads);
    for (int i = 0; i < kThreads; ++i) threads.Soon([all] { all->arrive_and_wait(); });
    all->wait();
  }
}

TEST(WorkerThreadsTest, OneThatDoesNotReturnKeepsNoOtherFromRunning) {
  std::latch end(1), others(3);
  WorkerThreads threads(2);
  threads.Soon([&] { end.wait(); });
  for (int i = 0; i < 3; ++i) threads.Soon([&] { others.count_down(); });
  others.wait();
  end.count_down();
}

TEST(WorkerThreadsTest, TheyRunWhereTheirMakerMay) {
  const std::vector<int> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one CPU";
  WorkerThreads threads(1);
  std::vector<int> seen;
  std::latch done(1);
  std::thread bound([&] {
    ASSERT_TRUE(RestrictToCpus(std::span(allowed).first(1)));
    threads.Soon([&] {
      seen = AllowedCpus();
      done.count_down();
    });
  });
  bound.join();
  done.wait();
  EXPECT_EQ(seen, allowed);
}

TEST(WorkerThreadsTest, ThereAreNoMoreThreadsThanTheBound) {
  constexpr int kThreads = 3;
  Mutex mutex;
  std::set<std::thread::id> seen;
  {
    WorkerThreads threads(kThreads);
    for (int i = 0; i < 300; ++i) {
      threads.Soon([&] {
        std::this_thread::yield();
        MutexLock lock(mutex);
        seen.insert(std::this_thread::get_id());
      });
    }
  }
  EXPECT_LE(seen.size(), static_cast<size_t>(kThreads));
}

TEST(WorkerThreadsTest, WhereAllAreBusyOneOfThemTakesWhatComes) {
  constexpr int kThreads = 2;
  std::set<std::thread::id> busy;
  std::thread::id last;
  Mutex mutex;
  std::latch begun(kThreads), end(1);
  {
    WorkerThreads threads(kThreads);
    for (int i = 0; i < kThreads; ++i) {
      threads.Soon([&] {
        {
          MutexLock lock(mutex);
          busy.insert(std::this_thread::get_id());
        }
        begun.count_down();
        end.wait();
      });
    }
    begun.wait();
    threads.Soon([&] { last = std::this_thread::get_id(); });
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // another thread would take it
    end.count_down();
  }
  EXPECT_EQ(busy.size(), static_cast<size_t>(kThreads));
  EXPECT_TRUE(busy.contains(last));
}

TEST(WorkerThreadsTest, OneThreadRunsThemInOrder) {
  std::vector<int> order;
  {
    WorkerThreads threads(1);
    for (int i = 0; i < 100; ++i) threads.Soon([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(WorkerThreadsTest, TheEndRunsWhatIsLeftAndWhatThatAsksFor) {
  std::atomic<int> runs{0};
  {
    WorkerThreads threads(2);
    for (int i = 0; i < 100; ++i) {
      threads.Soon([&] {
        ++runs;
        threads.Soon([&] { ++runs; });
      });
    }
  }
  EXPECT_EQ(runs, 200);
}

// Buffers and answers that a function owns go with it, and may ask for more.
TEST(WorkerThreadsTest, WhatAFunctionHeldGoesWithoutTheLock) {
  std::latch gone(1);
  WorkerThreads threads(1);
  const auto goes = [&](int*) { threads.Soon([&] { gone.count_down(); }); };
  threads.Soon([held = std::shared_ptr<int>(nullptr, goes)] {});
  gone.wait();
}

TEST(WorkerThreadsTest, WhereNoneCanBeStartedAnyMoreThereIsOne) {
  std::latch done(1);
  bool is_forbidden = false, has_thrown = false;
  WorkerThreads threads(2);
  std::thread([&] {
    is_forbidden = testing_util::ForbidThreads();
    if (!is_forbidden) return;
    try {
      threads.Soon([&] { done.count_down(); });
    } catch (const std::system_error&) {
      has_thrown = true;
    }
  }).join();
  if (!is_forbidden) GTEST_SKIP() << "no seccomp here";
  ASSERT_FALSE(has_thrown);
  done.wait();
}

TEST(WorkerThreadsTest, WhereNoMoreCanBeStartedTheOthersDoTheWork) {
  std::latch begun(1), end(1), all(3);
  bool is_forbidden = false, has_thrown = false;
  WorkerThreads threads(3);
  threads.Soon([&] {
    is_forbidden = testing_util::ForbidThreads();  // to the first of them, too
    begun.count_down();
    end.wait();
  });
  begun.wait();
  std::thread([&] {
    if (!is_forbidden || !testing_util::ForbidThreads()) return;
    try {
      for (int i = 0; i < 3; ++i) threads.Soon([&] { all.count_down(); });
    } catch (const std::system_error&) {
      has_thrown = true;
    }
  }).join();
  end.count_down();
  if (!is_forbidden) GTEST_SKIP() << "no seccomp here";
  ASSERT_FALSE(has_thrown);
  all.wait();
}

}  // namespace
}  // namespace kvcake
