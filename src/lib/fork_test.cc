// What a child of fork may do with the library that its parent uses.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "lib/kvcake.h"
#include "lib/library_testing.h"

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
