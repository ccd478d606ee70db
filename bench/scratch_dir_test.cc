#include "bench/scratch_dir.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/temp_dir_testing.h"

namespace kvcake::bench {
namespace {

namespace fs = std::filesystem;

TEST(ScratchDir, IsRemovedWithAllItHolds) {
  const TempDir parent;
  std::string path;
  {
    const ScratchDir dir = ScratchDir::Make(parent.path(), "load").value();
    path = dir.path();
    fs::create_directories(path + "/store/shard");
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::is_empty(parent.path()));
}

// As a bench leaves it that is interrupted.
void MakeAndEnd(const std::string& parent) {
  const ScratchDir dir = ScratchDir::Make(parent, "load").value();
  std::ofstream(dir.path() + "/chunks") << "many";
  _exit(0);
}

TEST(ScratchDirDeathTest, RemovesWhatABenchOfTheSameNameLeftThatWasEnded) {
  const TempDir parent;
  EXPECT_EXIT(MakeAndEnd(parent.path()), testing::ExitedWithCode(0), "");
  ASSERT_FALSE(fs::is_empty(parent.path()));
  const std::string left = fs::directory_iterator(parent.path())->path();
  ASSERT_TRUE(fs::exists(left + "/chunks"));
  const ScratchDir other = ScratchDir::Make(parent.path(), "serve").value();
  EXPECT_TRUE(fs::exists(left)) << "another bench's";
  const ScratchDir next = ScratchDir::Make(parent.path(), "load").value();
  EXPECT_FALSE(fs::exists(left));
}

TEST(ScratchDir, LeavesAloneWhatRunsAndWhatIsNotItsOwn) {
  const TempDir parent;
  const std::string backup = parent.path() + "/load-backup";
  fs::create_directories(backup + "/data");
  const ScratchDir running = ScratchDir::Make(parent.path(), "load").value();
  const ScratchDir next = ScratchDir::Make(parent.path(), "load").value();
  EXPECT_TRUE(fs::exists(running.path()));
  EXPECT_TRUE(fs::exists(backup + "/data"));
}

}  // namespace
}  // namespace kvcake::bench
