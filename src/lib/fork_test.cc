// What a child of fork may do with the library that its parent uses.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "lib/kvcake.h"
#include "lib/library_testing.h"
#include "lib/registry.h"

namespace kvcake {
namespace {

using namespace testing_util;

TEST_F(LibraryTest, AChildOfForkCannotTouchItsParentsCaches) {
  Open();
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 4), &restoration), KVCAKE_OK);
  const pid_t child = fork();
  if (child == 0) {
    auto stats = Sized<kvcake_stats_info>();
    auto turn = Sized<kvcake_turn>();
    const bool refused = kvcake_stats(cache_, &stats) == KVCAKE_FORKED &&
                         kvcake_close(cache_) == KVCAKE_FORKED &&
                         kvcake_claim_front(restoration, 1, 1, &turn) == KVCAKE_FORKED &&
                         kvcake_end(restoration) == KVCAKE_FORKED;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(kvcake_end(restoration), KVCAKE_OK) << "the parent goes on";
}

TEST_F(LibraryTest, AChildOfForkOpensCachesOfItsOwn) {
  EXPECT_EQ(kvcake_close(0), KVCAKE_NOT_FOUND);  // the library knows its process from here on
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    Open();
    Keep(1, 4);
    kvcake_restoration restoration = 0;
    EXPECT_EQ(Begin(Keys(1, 4), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
    EXPECT_EQ(Restore(restoration).loaded, 4);
    EXPECT_EQ(ExpectBytes(restoration, 1), 4);
    EXPECT_EQ(kvcake_end(restoration), KVCAKE_OK);
    EXPECT_EQ(kvcake_close(cache_), KVCAKE_OK);
    _exit(HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Its registry is empty, and nobody else's is filled.
TEST_F(LibraryTest, AProcessOpensNoMoreCachesThanItHasNumbersFor) {
  EXPECT_EQ(kvcake_close(0), KVCAKE_NOT_FOUND);
  const pid_t child = fork();
  if (child == 0) {
    int opened = 0;
    while (opened < 1 << 16 && Registry::Get().Add(nullptr)) ++opened;
    _exit(opened == (1 << 16) - 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Python's atexit does it, in every child that multiprocessing forks.
TEST_F(LibraryTest, AChildOfForkLogsThoughAThreadOfItsParentWasLogging) {
  static std::promise<void> entered, go_on;
  ASSERT_EQ(kvcake_set_log(
                [](void*, int, const char*) {
                  entered.set_value();
                  go_on.get_future().wait();
                },
                nullptr),
            KVCAKE_OK);
  std::thread logs([] { spdlog::warn("a warning"); });
  entered.get_future().wait();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const bool is_set = kvcake_set_log(nullptr, nullptr) == KVCAKE_OK;
    spdlog::warn("a child's warning");
    _exit(is_set ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  go_on.set_value();
  logs.join();
  ASSERT_EQ(kvcake_set_log(nullptr, nullptr), KVCAKE_OK);
}

}  // namespace
}  // namespace kvcake
