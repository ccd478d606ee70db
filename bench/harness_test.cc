#include "bench/harness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/cpu.h"
#include "base/temp_dir_testing.h"
#include "model/config.h"

namespace kvcake::bench {
namespace {

// Where CacheDir() is while it lives.
class OwnCache {
 public:
  OwnCache() {
    if (const char* const home = std::getenv("XDG_CACHE_HOME")) before_ = home;
    setenv("XDG_CACHE_HOME", dir_.path().c_str(), 1);
  }
  ~OwnCache() {
    if (before_) setenv("XDG_CACHE_HOME", before_->c_str(), 1);
    if (!before_) unsetenv("XDG_CACHE_HOME");
  }

 private:
  const TempDir dir_;
  std::optional<std::string> before_;
};

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

// The lanes have met, and what the one had begun to read comes when the prompt has been answered:
// most of all where all threads share a core.
TEST(HarnessTest, ReadsThatAPromptDidNotWaitForAreInNoColdRun) {
  const OwnCache cache;
  const TempDir store;
  std::jthread([&] {  // a thread that may be pinned
    const auto runtime = Runtime::Create({.model_dir = SynthModelDir("tiny").value(),
                                          .stores = {{.dir = store.path()}},
                                          .ram_capacity_bytes = 64 << 20,
                                          .chunk_tokens = 32,
                                          .cpus = {AllowedCpus()[0]}})
                             .value();
    const auto prompt = RandomPrompt(1024, runtime->config().vocab_size, 1);
    ASSERT_TRUE(RunCold(*runtime, prompt, Policy::kCompute, 1, /*store=*/true));
    for (int i = 0; i < 200; ++i) {
      const auto run = RunCold(*runtime, prompt, Policy::kPublished, 1, /*store=*/false);
      ASSERT_TRUE(run) << run.error().message;
    }
  });
}

// Ranks of a bench ask for it at the same time.
TEST(HarnessTest, AModelIsWrittenByOne) {
  const OwnCache cache;
  std::vector<Result<std::string>> dirs(4);
  {
    std::vector<std::jthread> threads;
    for (auto& dir : dirs) threads.emplace_back([&dir] { dir = SynthModelDir("tiny"); });
  }
  for (const auto& dir : dirs) EXPECT_TRUE(dir) << dir.error().message;
  EXPECT_TRUE(LoadModelConfig(*dirs[0]));
}

// What it removes is what it has begun to write itself.
TEST(HarnessTest, ANameThatIsNoShapeTouchesNothing) {
  const OwnCache cache;
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
}

}  // namespace
}  // namespace kvcake::bench
