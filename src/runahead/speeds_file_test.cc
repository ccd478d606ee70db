// What is said of speeds that cannot be kept. ChainPlannerTest has what they are kept for.
#include "runahead/speeds_file.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/log_testing.h"
#include "base/temp_dir_testing.h"
#include "io/faulty_file_system_testing.h"

namespace kvcake {
namespace {

// Counts the files that were begun.
class CountedFileSystem : public FaultyFileSystem {
 public:
  CountedFileSystem() : FaultyFileSystem(FileSystem::Real(), 1) {}
  std::atomic<int> begun = 0;

  Result<std::unique_ptr<File>> Create(const std::string& path, bool direct) override {
    ++begun;
    return FaultyFileSystem::Create(path, direct);
  }
};

class SpeedsFileTest : public testing::Test {
 protected:
  SpeedsFileTest() { std::filesystem::create_directory(dir_); }

  // Until one save at least has ended, as the next has begun, that knows of nothing before.
  void SaveAgainAndAgain() {
    const int enough = fs_.begun + 3;
    while (fs_.begun < enough) {
      file_->Save({1, 0.5});
      std::this_thread::yield();
    }
  }
  size_t said() const { return log_.Lines().size(); }

  const TempDir above_;
  const std::string dir_ = above_.path() + "/store";
  const testing_util::CapturedLog log_;
  CountedFileSystem fs_;
  std::unique_ptr<SpeedsFile> file_ = std::make_unique<SpeedsFile>(dir_ + "/ranks.json", fs_);
};

TEST_F(SpeedsFileTest, ThatTheyAreNotKeptIsSaidOnceAndAgainWhenTheyWere) {
  for (size_t times = 1; times <= 2; ++times) {
    fs_.Set({.no_space = 1});
    SaveAgainAndAgain();
    SaveAgainAndAgain();
    EXPECT_EQ(said(), times);
    fs_.Set({});
    SaveAgainAndAgain();
  }
  EXPECT_EQ(file_->Load(), (std::vector<double>{1, 0.5}));
}

TEST_F(SpeedsFileTest, ADirectoryThatHasGoneIsNoFault) {
  std::filesystem::remove_all(dir_);
  SaveAgainAndAgain();
  EXPECT_EQ(said(), 0u);
}

}  // namespace
}  // namespace kvcake
