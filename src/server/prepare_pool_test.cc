#include "server/prepare_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace kvcake {
namespace {

constexpr size_t kLarge = 64 << 10, kSmall = kLarge - 1;

// Work that runs until it is let go.
class Held {
 public:
  std::function<void()> Work() {
    return [this] {
      began_.set_value();
      let_go_.get_future().wait();
    };
  }
  void AwaitBegin() { began_.get_future().wait(); }
  void LetGo() { let_go_.set_value(); }

 private:
  std::promise<void> began_, let_go_;
};

void AwaitOne(PreparePool& pool, size_t bytes) {
  std::promise<void> done;
  ASSERT_TRUE(pool.Post(bytes, [&] { done.set_value(); }));
  done.get_future().wait();
}

TEST(PreparePoolTest, WhatIsSmallIsDoneWhileLargeOnesAreHeld) {
  Held one, two;
  std::atomic<bool> third{false};
  {
    PreparePool pool({.threads = 2});
    ASSERT_TRUE(pool.Post(kLarge, one.Work()));
    ASSERT_TRUE(pool.Post(10 * kLarge, two.Work()));
    one.AwaitBegin();
    two.AwaitBegin();
    ASSERT_TRUE(pool.Post(kLarge, [&] { third = true; }));
    EXPECT_EQ(pool.load().large, 3u);
    for (int i = 0; i < 100; ++i) AwaitOne(pool, kSmall);
    EXPECT_FALSE(third);
    one.LetGo();
    two.LetGo();
  }
  EXPECT_TRUE(third);  // what waits is done before the pool goes
}

TEST(PreparePoolTest, ThreadsForAllTakeWhatIsSmallToo) {
  Held one, two;
  PreparePool pool({.threads = 1});
  ASSERT_TRUE(pool.Post(0, one.Work()));
  ASSERT_TRUE(pool.Post(kSmall, two.Work()));
  one.AwaitBegin();
  two.AwaitBegin();
  one.LetGo();
  two.LetGo();
  AwaitOne(pool, kLarge);
}

TEST(PreparePoolTest, RefusesMoreOfAKindThanItsQueueHolds) {
  Held large, small;
  PreparePool pool({.threads = 1, .queue_max = 2});
  ASSERT_TRUE(pool.Post(kLarge, large.Work()));
  large.AwaitBegin();
  ASSERT_TRUE(pool.Post(0, small.Work()));
  small.AwaitBegin();
  EXPECT_TRUE(pool.Post(kLarge, [] {}));
  EXPECT_FALSE(pool.Post(kLarge, [] { FAIL(); }));
  EXPECT_TRUE(pool.Post(kSmall, [] {}));
  EXPECT_FALSE(pool.Post(kSmall, [] { FAIL(); }));
  large.LetGo();
  small.LetGo();
}

}  // namespace
}  // namespace kvcake
