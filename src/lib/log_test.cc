// Where the library's messages go, whatever the host does with its own.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "lib/kvcake.h"
#include "lib/library_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class LogTest : public LibraryTest {
 protected:
  void SetUp() override { before_ = spdlog::default_logger(); }
  void TearDown() override {
    LibraryTest::TearDown();
    spdlog::set_default_logger(before_);
    EXPECT_EQ(kvcake_set_log(nullptr, nullptr), KVCAKE_OK);
  }
  static void Keep(void* context, int, const char* message) {
    static_cast<std::vector<std::string>*>(context)->push_back(message);
  }

 private:
  std::shared_ptr<spdlog::logger> before_;
};

// spdlog's own has no name, and writes to stdout, which is the host's.
TEST_F(LogTest, ALoggerThatNobodyChoseIsReplacedWhereACacheOpens) {
  Open();
  EXPECT_EQ(spdlog::default_logger()->name(), "kvcake");
}

TEST_F(LogTest, ALoggerThatTheHostHasNamedStays) {
  const auto hosts = std::make_shared<spdlog::logger>("host");
  spdlog::set_default_logger(hosts);
  Open();
  EXPECT_EQ(spdlog::default_logger(), hosts);
}

TEST_F(LogTest, MessagesArriveWhole) {
  std::vector<std::string> heard;
  ASSERT_EQ(kvcake_set_log(&Keep, &heard), KVCAKE_OK);
  spdlog::warn("{} words", "three whole");
  EXPECT_EQ(heard, std::vector<std::string>{"three whole words"});
}

TEST_F(LogTest, AChildOfForkLogsWhereItsParentDoes) {
  std::vector<std::string> heard;
  ASSERT_EQ(kvcake_set_log(&Keep, &heard), KVCAKE_OK);
  const pid_t child = fork();
  if (child == 0) {
    spdlog::warn("a child's warning");
    _exit(heard == std::vector<std::string>{"a child's warning"} ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace kvcake
