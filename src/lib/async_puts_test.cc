#include "lib/async_puts.h"

#include <gtest/gtest.h>

#include <latch>
#include <new>
#include <set>
#include <vector>

#include "lib/cache.h"

namespace kvcake {
namespace {

std::vector<AsyncWrite> Writes(int first, int count) {
  std::vector<AsyncWrite> writes;
  for (int i = first; i < first + count; ++i)
    writes.push_back({.key = {}, .parent = {}, .position = i});
  return writes;
}

TEST(AsyncPutsTest, WhoWaitsPutsWhatTheThreadHasNotBegunTo) {
  std::latch began(1), others(3);
  AsyncPuts puts([&](const AsyncWrite& write) {
    if (write.position == 0) {
      began.count_down();
      others.wait();
    } else {
      others.count_down();
    }
    return PutOutcome::kKept;
  });
  puts.Add(Writes(0, 4));
  began.wait();
  EXPECT_EQ(puts.Wait().kept, 4u);
}

TEST(AsyncPutsTest, TheThreadPutsWithoutAnybodyWhoWaits) {
  std::latch put(5);
  std::vector<int> order;
  AsyncPuts puts([&](const AsyncWrite& write) {
    order.push_back(write.position);
    put.count_down();
    return PutOutcome::kKept;
  });
  puts.Add(Writes(0, 2));
  puts.Add(Writes(2, 3));
  put.wait();
  EXPECT_EQ(puts.Wait().kept, 5u);
  EXPECT_EQ(order, (std::vector{0, 1, 2, 3, 4}));
}

TEST(AsyncPutsTest, WaitingEndsWhenAllHasBeenPutAndTellsOfEachOnce) {
  Mutex mutex;
  std::set<int> put;
  AsyncPuts puts([&](const AsyncWrite& write) {
    MutexLock lock(mutex);
    put.insert(write.position);
    return write.position % 3 == 0   ? PutOutcome::kKept
           : write.position % 3 == 1 ? PutOutcome::kHeld
                                     : PutOutcome::kDropped;
  });
  for (int round = 0; round < 100; ++round) {
    puts.Add(Writes(6 * round, 6));
    const PutCounts counts = puts.Wait();
    EXPECT_EQ(counts.kept, 2u);
    EXPECT_EQ(counts.dropped, 2u);
    MutexLock lock(mutex);
    ASSERT_EQ(put.size(), 6u * (round + 1));
  }
  EXPECT_EQ(puts.Wait().kept, 0u);
}

TEST(AsyncPutsTest, WhatThereIsNoMemoryForIsDropped) {
  AsyncPuts puts([](const AsyncWrite& write) {
    if (write.position == 1) throw std::bad_alloc();
    return PutOutcome::kKept;
  });
  puts.Add(Writes(0, 3));
  const PutCounts counts = puts.Wait();
  EXPECT_EQ(counts.kept, 2u);
  EXPECT_EQ(counts.dropped, 1u);
}

TEST(AsyncPutsTest, WhatNobodyWaitsForIsPutAtTheEnd) {
  int put = 0;
  {
    AsyncPuts puts([&](const AsyncWrite&) {
      ++put;
      return PutOutcome::kKept;
    });
    puts.Add(Writes(0, 7));
  }
  EXPECT_EQ(put, 7);
}

}  // namespace
}  // namespace kvcake
