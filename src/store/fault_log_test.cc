#include "store/fault_log.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>

namespace kvcake {
namespace {

TEST(FaultLogTest, SaysWhatBeginsAndWhatHasGoneAndNothingBetween) {
  std::ostringstream text;
  const auto before = spdlog::default_logger();
  const auto logger = std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
  logger->set_pattern("%v");
  spdlog::set_default_logger(logger);
  FaultLog log("reading");
  log.Succeeded();
  for (int i = 0; i < 3; ++i) log.Failed({ErrorCode::kIo, "no answer"});
  for (int i = 0; i < 3; ++i) log.Succeeded();
  log.Failed({ErrorCode::kIo, "it flickers"});
  log.Succeeded();
  spdlog::set_default_logger(before);
  EXPECT_EQ(text.str(),
            "store: reading fails: no answer; further failures are only counted\n"
            "store: reading works again\n");
}

}  // namespace
}  // namespace kvcake
