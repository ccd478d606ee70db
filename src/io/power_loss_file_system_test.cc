#include <gtest/gtest.h>

#include "io/power_loss_file_system_testing.h"

namespace kvcake {
namespace {

Status WriteFile(PowerLossFileSystem& fs, const std::string& path, const std::string& text,
                 bool sync) {
  ASSIGN_OR_RETURN(auto file, fs.Create(path, false));
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  RETURN_IF_ERROR(WriteFully(*file, {&bytes, 1}, 0));
  return sync ? file->Sync() : Status();
}

TEST(PowerLossFileSystemTest, SyncedBytesUnderSyncedNamesStayAndNothingElseMust) {
  PowerLossFileSystem fs(1);
  ASSERT_TRUE(fs.MakeDirs("/store/v1"));
  ASSERT_TRUE(fs.SyncDir("/store"));
  const std::string text(20000, 'x');
  ASSERT_TRUE(WriteFile(fs, "/store/v1/a.tmp", text, /*sync=*/true));
  ASSERT_TRUE(fs.Rename("/store/v1/a.tmp", "/store/v1/a"));
  EXPECT_EQ(*ReadText(fs, "/store/v1/a", 1 << 20), text) << "seen before it is durable";
  fs.LosePower(/*kept=*/0);
  EXPECT_FALSE(fs.Stat("/store")) << "nobody synced the directory above";
  EXPECT_GT(fs.lost(), 0u);
}

TEST(PowerLossFileSystemTest, WritesAreLostInPartsAndRenamesWhole) {
  bool torn = false, whole = false, gone = false;
  for (uint64_t seed = 1; seed < 60; ++seed) {
    PowerLossFileSystem fs(seed);
    ASSERT_TRUE(fs.MakeDirs("/d"));
    fs.LosePower(/*kept=*/1);
    const std::string text(20000, 'x');
    ASSERT_TRUE(WriteFile(fs, "/d/a.tmp", text, /*sync=*/false));
    ASSERT_TRUE(fs.Rename("/d/a.tmp", "/d/a"));
    fs.LosePower(/*kept=*/0.7);
    const auto after = ReadText(fs, "/d/a", 1 << 20);
    gone |= !after;
    whole |= after && *after == text;
    torn |= after && *after != text;
    EXPECT_FALSE(fs.Stat("/d/a") && fs.Stat("/d/a.tmp")) << "renamed and not";
  }
  EXPECT_TRUE(torn && whole && gone);
}

TEST(PowerLossFileSystemTest, AfterTheCutNothingChanges) {
  PowerLossFileSystem fs(1);
  ASSERT_TRUE(fs.MakeDirs("/d"));
  fs.LosePower(/*kept=*/1);
  fs.CutAfter(2);
  EXPECT_FALSE(fs.cut());
  auto file = fs.Create("/d/a", false).value();
  const std::string text(5000, 'x');
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  ASSERT_TRUE(file->WriteAt({&bytes, 1}, 0));
  EXPECT_TRUE(fs.cut());
  EXPECT_FALSE(file->WriteAt({&bytes, 1}, 5000));
  EXPECT_FALSE(file->Sync());
  EXPECT_FALSE(fs.SyncDir("/d"));
  EXPECT_FALSE(fs.Create("/d/b", false));
  EXPECT_FALSE(fs.Rename("/d/a", "/d/b"));
  EXPECT_FALSE(fs.Remove("/d/a"));
  EXPECT_FALSE(fs.MakeDirs("/e"));
  fs.LosePower(/*kept=*/1);
  EXPECT_FALSE(fs.cut());
  EXPECT_EQ(*ReadText(fs, "/d/a", 1 << 20), text) << "what came before the cut, and no more";
  EXPECT_EQ(fs.List("/d")->size(), 1u);
  EXPECT_FALSE(fs.Stat("/e"));
}

}  // namespace
}  // namespace kvcake
