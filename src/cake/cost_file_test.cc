#include "cake/cost_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log_testing.h"
#include "base/temp_dir_testing.h"
#include "io/faulty_file_system_testing.h"
#include "store/memory_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;
using testing_util::Eventually;

class CostFileTest : public testing::Test {
 protected:
  CostFileTest() {
    for (int i = 0; i < 20; ++i) cost_.Add(i * 128, 128, Seconds(0.01));
    Save();
  }

  void Save(FileSystem& fs = FileSystem::Real()) {
    CostKeeper({{path_, {.compute = cost_, .restorer = *restorer_}}}, Seconds(3600), fs);
  }
  // The file with one more member.
  void Add(const std::string& value) {
    std::ifstream file(path_);
    std::string text(std::istreambuf_iterator<char>(file), {});
    std::ofstream(path_) << text.insert(1, "\"more\": " + value + ",");
  }
  // Whether somebody who knows nothing learns from the file.
  bool Teaches() {
    ComputeCost cost;
    LoadCosts({{path_, {.compute = cost, .restorer = *restorer_}}});
    return cost.fit().known();
  }

  const testing_util::CapturedLog log_;
  const TempDir dir_;
  const std::string path_ = dir_.path() + "/cost-1.json";
  ComputeCost cost_;
  std::unique_ptr<PagePool> pool_ = std::move(
      PagePool::Create({.layers = 1, .kv_heads = 1, .head_dim = 16, .chunk_tokens = 16}, 1 << 20)
          .value());
  MemoryTier tier_{{.layout = pool_->layout()}};
  std::unique_ptr<Restorer> restorer_ = NewRestorer(*pool_, {&tier_}, cost_, Clock::Real());
};

TEST_F(CostFileTest, WhatWasSavedTeaches) {
  EXPECT_TRUE(Teaches());
  Add("[1, 2]");  // a later version's
  EXPECT_TRUE(Teaches());
  EXPECT_EQ(log_.str(), "");
}

TEST_F(CostFileTest, AFileThatIsNotThereIsNoFault) {
  std::filesystem::remove(path_);
  EXPECT_FALSE(Teaches());
  EXPECT_EQ(log_.str(), "");
}

TEST_F(CostFileTest, AHugeFileIsRefusedByNameAndWrittenAnew) {
  Add('"' + std::string(16 << 20, 'x') + '"');
  EXPECT_FALSE(Teaches());
  EXPECT_THAT(log_.str(), HasSubstr(path_));
  EXPECT_THAT(log_.str(), HasSubstr("more than the limit of"));
  Save();
  EXPECT_TRUE(Teaches());
}

TEST_F(CostFileTest, AWriteThatFailsLeavesTheGoodFileAndNothingElse) {
  FaultyFileSystem full(FileSystem::Real(), 1);
  full.Set({.no_space = 1});
  Save(full);
  EXPECT_THAT(log_.str(), HasSubstr("no space left"));
  EXPECT_TRUE(Teaches());
  const std::filesystem::directory_iterator files(dir_.path());
  EXPECT_EQ(std::distance(files, {}), 1);
}

// A killed process saves nothing at its end.
TEST_F(CostFileTest, IsSavedNowAndThen) {
  const auto saved = [&] {
    std::ifstream file(path_);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  std::filesystem::remove(path_);
  const CostKeeper keeper({{path_, {.compute = cost_, .restorer = *restorer_}}}, Seconds(0.01));
  EXPECT_TRUE(Eventually([&] { return Teaches(); }));
  const std::string before = saved();
  cost_.Add(0, 512, Seconds(0.1));
  EXPECT_TRUE(Eventually([&] { return saved() != before; }));
}

// Counts the files that were begun under each path's beginning.
class CountedFiles : public FaultyFileSystem {
 public:
  CountedFiles() : FaultyFileSystem(FileSystem::Real(), 1) {}
  std::atomic<int> first = 0, others = 0;
  std::function<void()> on_create = [] {};

  Result<std::unique_ptr<File>> Create(const std::string& path, bool direct) override {
    ++(path.find("cost-1") != std::string::npos ? first : others);
    on_create();
    return FaultyFileSystem::Create(path, direct);
  }
};

TEST_F(CostFileTest, ThatItIsNotKeptIsSaidOnceAndAgainWhenItWas) {
  CountedFiles files;
  {
    const CostKeeper keeper({{path_, {.compute = cost_, .restorer = *restorer_}}}, Seconds(1e-3),
                            files);
    // One save at least begins and ends.
    const auto save = [&] {
      for (int i = 0; i < 3; ++i) {
        const int before = files.first;
        cost_.Add(0, 128, Seconds(0.01));
        EXPECT_TRUE(Eventually([&] { return files.first > before; }));
      }
    };
    for (const double no_space : {1, 0, 1}) {
      files.Set({.no_space = no_space});
      save();
    }
  }
  size_t said = 0;
  const std::string log = log_.str();
  for (size_t at = 0; (at = log.find("is not kept", at)) != std::string::npos; ++at) ++said;
  EXPECT_EQ(said, 2u);
}

// A disk that was full for a moment loses nothing, although nothing new is learnt after it.
TEST_F(CostFileTest, WhatCouldNotBeWrittenIsWrittenLater) {
  std::filesystem::remove(path_);
  CountedFiles files;
  files.Set({.no_space = 1});
  {
    const CostKeeper keeper({{path_, {.compute = cost_, .restorer = *restorer_}}}, Seconds(1e-3),
                            files);
    EXPECT_TRUE(Eventually([&] { return files.first > 0; }));
    files.Set({});
  }
  EXPECT_TRUE(Teaches());
}

// A store may take long for it.
TEST_F(CostFileTest, WhatIsLearntWhileItIsSavedIsSavedAtTheEnd) {
  CountedFiles files;
  std::atomic<bool> begun = false, ends = false;
  files.on_create = [&] {
    if (begun) return;
    cost_.Add(0, 512, Seconds(0.1));
    begun = true;
    while (!ends) std::this_thread::yield();
  };
  {
    const CostKeeper keeper({{path_, {.compute = cost_, .restorer = *restorer_}}}, Seconds(1e-3),
                            files);
    while (!begun) std::this_thread::yield();
    ends = true;
  }
  EXPECT_EQ(files.first, 2);
  std::ifstream file(path_);
  EXPECT_EQ(nlohmann::json::parse(file)["compute"], cost_.ToJson());
}

TEST_F(CostFileTest, IsLeftAloneWhereNothingWasLearnt) {
  CountedFiles files;
  ComputeCost learns;
  {
    const CostKeeper keeper(
        {{path_, {.compute = cost_, .restorer = *restorer_}},
         {dir_.path() + "/cost-2.json", {.compute = learns, .restorer = *restorer_}}},
        Seconds(1e-3), files);
    for (int i = 1; i <= 4; ++i) {
      EXPECT_TRUE(Eventually([&] { return files.others >= i; }));
      learns.Add(0, 128, Seconds(0.01));
    }
  }
  EXPECT_EQ(files.others, 5);
  EXPECT_EQ(files.first, 1);
}

TEST_F(CostFileTest, ADirectoryThatHasGoneIsNoFault) {
  CostKeeper({{dir_.path() + "/gone/cost-1.json", {.compute = cost_, .restorer = *restorer_}}});
  EXPECT_EQ(log_.str(), "");
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/gone"));
}

TEST_F(CostFileTest, TheFirstStoresHasTheLastWordAboutCompute) {
  const std::string second = dir_.path() + "/cost-2.json";
  ComputeCost slow, learnt;
  for (int i = 0; i < 20; ++i) slow.Add(i * 128, 128, Seconds(1));
  CostKeeper({{second, {.compute = slow, .restorer = *restorer_}}});
  const Learners learners{.compute = learnt, .restorer = *restorer_};
  LoadCosts({{path_, learners}, {second, learners}});
  EXPECT_NEAR(learnt.fit().SecondsFor(0, 128), 0.01, 1e-3);
}

TEST_F(CostFileTest, AFileThatLacksAPartIsRefusedByName) {
  std::ofstream(path_) << R"({"compute": {"version": 1, "samples": [[0, 128, 0.01]]}})";
  EXPECT_FALSE(Teaches());
  EXPECT_THAT(log_.str(), HasSubstr(path_ + ": it has no compute and tier"));
}

TEST_F(CostFileTest, EachDeviceHasAFileOfItsOwn) {
  const ChunkKey root{};
  EXPECT_EQ(CostPath("store", root, "cpu"), CostPath("store", root, "cpu"));
  EXPECT_NE(CostPath("store", root, "cpu"), CostPath("store", root, "cuda"));
}

TEST_F(CostFileTest, IsPrivate) {
  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(CostFileTest, AFileOfManyValuesIsRefused) {
  std::string values = "[0";
  for (int i = 0; i < 1 << 20; ++i) values += ",0";
  Add(values + "]");
  EXPECT_FALSE(Teaches());
  EXPECT_THAT(log_.str(), HasSubstr("values"));
}

TEST_F(CostFileTest, ADeeplyNestedFileIsRefusedByName) {
  Add(std::string(100, '[') + std::string(100, ']'));
  EXPECT_FALSE(Teaches());
  EXPECT_THAT(log_.str(), HasSubstr(path_ + ": nested deeper than 8 levels"));
}

TEST_F(CostFileTest, WhatIsNoFileIsRefusedAndNotWaitedFor) {
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_FALSE(Teaches());
  EXPECT_THAT(log_.str(), HasSubstr(path_ + " is not a regular file"));
}

}  // namespace
}  // namespace kvcake
