#include "store/link_trace.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/temp_dir_testing.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

TEST(LinkTraceTest, ReadsLinesOfThreeNumbers) {
  const LinkTrace trace =
      ParseLinkTrace("# a link\n0 1e6 0.001\n\n  2.5\t25000000 0\r\n10 1 3\n").value();
  ASSERT_EQ(trace.size(), 3u);
  EXPECT_EQ(trace[0].at.count(), 0);
  EXPECT_EQ(trace[0].rate_bytes_per_s, 1e6);
  EXPECT_EQ(trace[0].latency.count(), 0.001);
  EXPECT_EQ(trace[1].at.count(), 2.5);
  EXPECT_EQ(trace[1].rate_bytes_per_s, 25e6);
  EXPECT_EQ(trace[2].latency.count(), 3);
}

TEST(LinkTraceTest, RefusesWhatCannotBeByLine) {
  for (const char* text :
       {"0 1 0\n1 2", "0 1 0\n1 2 3 4", "0 1 0\nx y z", "0 1 0\n0 1 0", "0 1 0\n-1 5 0",
        "0 1 0\n1 0 0", "0 1 0\n1 -5 0", "0 1 0\n1 5 -1", "0 1 0\n1 nan 0", "0 1 0\n1 1e30 0"}) {
    const auto trace = ParseLinkTrace(text);
    ASSERT_FALSE(trace) << text;
    EXPECT_EQ(trace.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(trace.error().message.find("line 2"), std::string::npos) << trace.error().message;
  }
  EXPECT_FALSE(ParseLinkTrace("# nothing\n"));
}

TEST(LinkTraceTest, ErrorsNameTheFile) {
  TempDir dir;
  const std::string path = dir.path() + "/trace";
  EXPECT_NE(ReadLinkTrace(path).error().message.find(path), std::string::npos);
  std::ofstream(path) << "0 zero 0\n";
  EXPECT_NE(ReadLinkTrace(path).error().message.find(path), std::string::npos);
}

}  // namespace
}  // namespace kvcake
