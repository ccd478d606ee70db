#include "bench/harness.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/temp_dir_testing.h"

namespace kvcake::bench {
namespace {

TEST(HarnessTest, MedianOfOddAndEven) {
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(Median({7}), 7);
}

// As a directory may be named that a model is in.
TEST(HarnessTest, ResultsAreWrittenWhateverTheBytesOfANameAre) {
  const TempDir dir;
  const std::string path = dir.path() + "/json";
  ASSERT_TRUE(WriteJson(path, {{"model", "d\xe9mo"}, {"tokens", 5}}));
  std::ifstream in(path);
  const auto json = nlohmann::json::parse(in);
  EXPECT_EQ(json["tokens"], 5);
  EXPECT_EQ(json["model"], "d\uFFFDmo");
}

}  // namespace
}  // namespace kvcake::bench
