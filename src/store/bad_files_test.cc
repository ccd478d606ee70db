#include "store/bad_files.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/temp_dir_testing.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class BadFilesTest : public testing::Test {
 protected:
  // A chunk's file with something else in it.
  std::string Make(size_t i) {
    const std::string path = store_.ChunkPath({Root(), chain_[i]});
    EXPECT_TRUE(fs_.MakeDirs(store_.ShardDir({Root(), chain_[i]})));
    std::ofstream(path) << "not a chunk";
    return path;
  }
  FileInfo InfoOf(const std::string& path) { return fs_.Stat(path).value(); }
  bool Move(const std::string& path, const FileInfo& bad) {
    return files_.MoveAway(path, {ErrorCode::kCorrupt, "no header"}, bad);
  }
  size_t Quarantined() { return ListQuarantine(dir_.path())->size(); }

  TempDir dir_;
  FileSystem& fs_ = FileSystem::Real();
  const StoreDir store_{dir_.path()};
  const std::vector<ChunkKey> chain_ = Chain(2);
  BadFiles files_{fs_, store_, {.files_max = 1}};
};

TEST_F(BadFilesTest, ABadFileIsMovedAndCounted) {
  const std::string path = Make(0);
  EXPECT_TRUE(Move(path, InfoOf(path)));
  EXPECT_FALSE(fs_.Stat(path));
  EXPECT_EQ(Quarantined(), 1u);
  EXPECT_EQ(files_.count(), 1u);
}

TEST_F(BadFilesTest, BeyondTheQuarantinesBoundItIsDeleted) {
  for (size_t i : {0, 1}) {
    const std::string path = Make(i);
    EXPECT_TRUE(Move(path, InfoOf(path)));
    EXPECT_FALSE(fs_.Stat(path));
  }
  EXPECT_EQ(Quarantined(), 1u);
  EXPECT_EQ(files_.count(), 2u);
}

TEST_F(BadFilesTest, TheBoundIsOneOfBytesToo) {
  const std::string paths[] = {Make(0), Make(1)};
  const uint64_t bytes = InfoOf(paths[0]).bytes;
  BadFiles files(fs_, store_, {.files_max = 100, .bytes_max = 2 * bytes - 1});
  for (const std::string& path : paths) {
    EXPECT_TRUE(files.MoveAway(path, {ErrorCode::kCorrupt, "no header"}, InfoOf(path)));
    EXPECT_FALSE(fs_.Stat(path));
  }
  EXPECT_EQ(Quarantined(), 1u);
  EXPECT_EQ(files.count(), 2u);
}

TEST_F(BadFilesTest, AFileThatHasGoneOrThatAnotherHasReplacedIsNotCounted) {
  const std::string path = Make(0);
  const FileInfo bad = InfoOf(path);
  ASSERT_TRUE(fs_.Rename(Make(1), path));  // another file has the name now
  EXPECT_TRUE(Move(path, bad));
  EXPECT_TRUE(fs_.Stat(path));
  ASSERT_TRUE(fs_.Remove(path));
  EXPECT_TRUE(Move(path, bad));
  EXPECT_EQ(Quarantined(), 0u);
  EXPECT_EQ(files_.count(), 0u);
}

}  // namespace
}  // namespace kvcake
