#include "bench/harness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
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

// What it removes is what it has begun to write itself.
TEST(HarnessTest, ANameThatIsNoShapeTouchesNothing) {
  const TempDir cache;
  const char* const before = std::getenv("XDG_CACHE_HOME");
  const std::string was = before != nullptr ? before : "";
  setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
  const std::string models = CacheDir() + "/models";
  std::filesystem::create_directories(models + "/mine");
  std::filesystem::create_directories(CacheDir() + "/store");
  for (const std::string name : {".", "..", "", "../store", "mine", "../.."}) {
    const auto dir = SynthModelDir(name);
    ASSERT_FALSE(dir) << name;
    EXPECT_EQ(dir.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(std::filesystem::exists(models + "/mine")) << name;
    EXPECT_TRUE(std::filesystem::exists(CacheDir() + "/store")) << name;
  }
  EXPECT_EQ(ModelDirNamed("."), ".") << "a directory";
  EXPECT_EQ(ModelDirNamed(models + "/mine"), models + "/mine");
  EXPECT_THAT(ModelDirNamed("mine").error().message, testing::HasSubstr("there are: tiny"));
  EXPECT_EQ(ModelDirNamed("tiny"), models + "/tiny");
  if (before != nullptr) {
    setenv("XDG_CACHE_HOME", was.c_str(), 1);
  } else {
    unsetenv("XDG_CACHE_HOME");
  }
}

}  // namespace
}  // namespace kvcake::bench
