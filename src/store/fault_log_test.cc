#include "store/fault_log.h"

#include <gtest/gtest.h>

#include "base/log_testing.h"

namespace kvcake {
namespace {

TEST(FaultLogTest, SaysWhatBeginsAndWhatHasGoneAndNothingBetween) {
  const testing_util::CapturedLog text;
  FaultLog log("reading");
  log.Succeeded();
  for (int i = 0; i < 3; ++i) log.Failed({ErrorCode::kIo, "no answer"});
  for (int i = 0; i < 3; ++i) log.Succeeded();
  log.Failed({ErrorCode::kIo, "it flickers"});
  log.Succeeded();
  EXPECT_EQ(text.str(),
            "store: reading fails: no answer; further failures are only counted\n"
            "store: reading works again\n");
}

TEST(FaultLogTest, SaysOnceWhatElseIsWrong) {
  const testing_util::CapturedLog text;
  FaultLog log("reading");
  for (int i = 0; i < 3; ++i) {
    log.Failed({ErrorCode::kIo, "it has ended"});
    log.Failed({ErrorCode::kInvalidArgument, "it wants a password"});
  }
  log.Succeeded();
  EXPECT_EQ(text.str(),
            "store: reading fails: it has ended; further failures are only counted\n"
            "store: reading fails: it wants a password; further failures are only counted\n"
            "store: reading works again\n");
}

}  // namespace
}  // namespace kvcake
