#include "store/fault_log.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>

namespace kvcake {
namespace {

class FaultLogTest : public testing::Test {
 protected:
  FaultLogTest() {
    const auto logger = std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_));
    logger->set_pattern("%v");
    spdlog::set_default_logger(logger);
  }
  ~FaultLogTest() override { spdlog::set_default_logger(before_); }

  std::ostringstream text_;
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

TEST_F(FaultLogTest, SaysWhatBeginsAndWhatHasGoneAndNothingBetween) {
  FaultLog log("reading");
  log.Succeeded();
  for (int i = 0; i < 3; ++i) log.Failed({ErrorCode::kIo, "no answer"});
  for (int i = 0; i < 3; ++i) log.Succeeded();
  log.Failed({ErrorCode::kIo, "it flickers"});
  log.Succeeded();
  EXPECT_EQ(text_.str(),
            "store: reading fails: no answer; further failures are only counted\n"
            "store: reading works again\n");
}

TEST_F(FaultLogTest, SaysOnceWhatElseIsWrong) {
  FaultLog log("reading");
  for (int i = 0; i < 3; ++i) {
    log.Failed({ErrorCode::kIo, "it has ended"});
    log.Failed({ErrorCode::kInvalidArgument, "it wants a password"});
  }
  log.Succeeded();
  EXPECT_EQ(text_.str(),
            "store: reading fails: it has ended; further failures are only counted\n"
            "store: reading fails: it wants a password; further failures are only counted\n"
            "store: reading works again\n");
}

}  // namespace
}  // namespace kvcake
