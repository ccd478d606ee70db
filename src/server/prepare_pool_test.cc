#include "server/prepare_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace kvcake {
namespace {

const std::string kNoTenant;  // of whom there is one, where there are no tenants
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
  ASSERT_TRUE(pool.Post(kNoTenant, bytes, [&] { done.set_value(); }));
  done.get_future().wait();
}

TEST(PreparePoolTest, WhatIsSmallIsDoneWhileLargeOnesAreHeld) {
  Held one, two;
  std::atomic<bool> third{false};
  {
    PreparePool pool({.threads = 2});
    ASSERT_TRUE(pool.Post(kNoTenant, kLarge, one.Work()));
    ASSERT_TRUE(pool.Post(kNoTenant, 10 * kLarge, two.Work()));
    one.AwaitBegin();
    two.AwaitBegin();
    ASSERT_TRUE(pool.Post(kNoTenant, kLarge, [&] { third = true; }));
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
  ASSERT_TRUE(pool.Post(kNoTenant, 0, one.Work()));
  ASSERT_TRUE(pool.Post(kNoTenant, kSmall, two.Work()));
  one.AwaitBegin();
  two.AwaitBegin();
  one.LetGo();
  two.LetGo();
  AwaitOne(pool, kLarge);
}

TEST(PreparePoolTest, RefusesMoreOfAKindThanItsQueueHolds) {
  Held large, small;
  PreparePool pool({.threads = 1, .queue_max = 2});
  ASSERT_TRUE(pool.Post(kNoTenant, kLarge, large.Work()));
  large.AwaitBegin();
  ASSERT_TRUE(pool.Post(kNoTenant, 0, small.Work()));
  small.AwaitBegin();
  EXPECT_TRUE(pool.Post(kNoTenant, kLarge, [] {}));
  EXPECT_FALSE(pool.Post(kNoTenant, kLarge, [] { FAIL(); }));
  EXPECT_TRUE(pool.Post(kNoTenant, kSmall, [] {}));
  EXPECT_FALSE(pool.Post(kNoTenant, kSmall, [] { FAIL(); }));
  large.LetGo();
  small.LetGo();
}

TEST(PreparePoolTest, ThreadsForAllTakeWhatIsLargeFirst) {
  Held large, small;
  std::string order;
  std::promise<void> done;
  PreparePool pool({.threads = 1});
  ASSERT_TRUE(pool.Post(kNoTenant, kLarge, large.Work()));
  large.AwaitBegin();
  ASSERT_TRUE(pool.Post(kNoTenant, kSmall, small.Work()));
  small.AwaitBegin();  // the thread for what is small takes nothing more
  ASSERT_TRUE(pool.Post(kNoTenant, kSmall, [&] { order += "small", done.set_value(); }));
  ASSERT_TRUE(pool.Post(kNoTenant, kLarge, [&] { order += "large, "; }));
  large.LetGo();
  done.get_future().wait();
  EXPECT_EQ(order, "large, small");
  small.LetGo();
}

TEST(PreparePoolTest, WhatIsDoneIsNoLoad) {
  PreparePool pool({.threads = 0});  // one after the other, by the thread for what is small
  AwaitOne(pool, kSmall);
  std::promise<size_t> load;
  ASSERT_TRUE(pool.Post(kNoTenant, kSmall, [&] { load.set_value(pool.load().small); }));
  EXPECT_EQ(load.get_future().get(), 1u);
}

// In what order the work of tenants is done that all came while the only thread for it was held.
TEST(PreparePoolTest, TenantsTakeTurns) {
  Held held;
  std::string order;
  std::promise<void> done;
  PreparePool pool({.threads = 1, .queue_max = 20});
  ASSERT_TRUE(pool.Post("a", kLarge, held.Work()));
  held.AwaitBegin();
  for (const char* one : {"a", "a", "a", "a", "b", "b", "c"}) {
    ASSERT_TRUE(pool.Post(one, kLarge, [&order, one] { order += one; }));
  }
  ASSERT_TRUE(pool.Post("c", kLarge, [&] { order += "C"; }));
  ASSERT_TRUE(pool.Post("a", kLarge, [&] { done.set_value(); }));
  held.LetGo();
  done.get_future().wait();
  EXPECT_EQ(order, "abcabCaa");
}

TEST(PreparePoolTest, ATenantHasHalfOfTheQueue) {
  Held held;
  PreparePool pool({.threads = 1, .queue_max = 4});
  ASSERT_TRUE(pool.Post("a", kLarge, held.Work()));
  EXPECT_TRUE(pool.Post("a", kLarge, [] {}));
  EXPECT_FALSE(pool.Post("a", kLarge, [] { FAIL(); }));
  EXPECT_TRUE(pool.Post("b", kLarge, [] {}));
  EXPECT_TRUE(pool.Post("b", kLarge, [] {}));
  EXPECT_FALSE(pool.Post("c", kLarge, [] { FAIL(); })) << "all have too many";
  held.LetGo();
}

TEST(PreparePoolTest, ATenantsShareIsItsOwnAgainWhenItsWorkIsDone) {
  Held held, again;
  std::promise<void> done;
  PreparePool pool({.threads = 1, .queue_max = 4});
  ASSERT_TRUE(pool.Post("a", kLarge, held.Work()));
  ASSERT_TRUE(pool.Post("a", kLarge, [] {}));
  ASSERT_TRUE(pool.Post("b", kLarge, [] {}));
  ASSERT_TRUE(pool.Post("b", kLarge, [&] { done.set_value(); }));
  held.LetGo();
  done.get_future().wait();  // the last of all: both of a's have ended
  ASSERT_TRUE(pool.Post("a", kLarge, again.Work()));
  EXPECT_TRUE(pool.Post("a", kLarge, [] {}));
  EXPECT_FALSE(pool.Post("a", kLarge, [] { FAIL(); }));
  again.LetGo();
}

}  // namespace
}  // namespace kvcake
