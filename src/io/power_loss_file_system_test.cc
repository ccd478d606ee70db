#include "io/power_loss_file_system.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace kvcake
