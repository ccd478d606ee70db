#include "engine/chain_json.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

TEST(ChainJsonTest, HasEachRanksPartUnderItsName) {
  ChainReport report;
  report.job.origin = 32;
  report.job.partition.bounds = {0, 64, 96};
  report.ranks = {{.compute_s = 1, .wait_s = 2, .sent_bytes = 3, .peak_rss_bytes = 4},
                  {.compute_s = 5, .wait_s = 6, .sent_bytes = 7, .peak_rss_bytes = 8}};
  EXPECT_EQ(ChainJson(report).dump(),
            R"({"origin":32,"bounds":[0,64,96],"ranks":[)"
            R"({"compute_s":1.0,"wait_s":2.0,"sent_bytes":3,"peak_rss_bytes":4},)"
            R"({"compute_s":5.0,"wait_s":6.0,"sent_bytes":7,"peak_rss_bytes":8}]})");
}

TEST(ChainJsonTest, IsNullWhereOneProcessDidItAll) { EXPECT_TRUE(ChainJson({}).is_null()); }

}  // namespace
}  // namespace kvcake
