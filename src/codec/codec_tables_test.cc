#include "codec/codec_tables.h"

#include <gmock/gmock.h>

#include <fstream>

#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

using ::testing::HasSubstr;

CodecTables SomeTables() {
  return {.codec = Codec::kCacheGen,
          .level = 2,
          .layers = 3,
          .kv_heads = 4,
          .head_dim = 5,
          .body = {std::byte{1}, std::byte{2}, std::byte{3}}};
}

TEST(CodecTables, AreThemselvesAfterAFile) {
  TempDir dir;
  const std::string path = dir.path() + "/a.tables";
  ASSERT_TRUE(SaveTables(SomeTables(), path));
  const auto loaded = LoadTables(path);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(*loaded, SomeTables());
  EXPECT_EQ(TablesDigest(*loaded), TablesDigest(SomeTables()));
  CodecTables other = SomeTables();
  other.body[1] = std::byte{4};
  EXPECT_NE(TablesDigest(other), TablesDigest(SomeTables()));
}

TEST(CodecTables, EveryDamagedOrMissingByteIsSeen) {
  const auto file = TablesFile(SomeTables());
  ASSERT_TRUE(ParseTables(file, "x"));
  for (size_t at = 0; at < file.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      auto damaged = file;
      damaged[at] ^= std::byte(flip);
      const auto parsed = ParseTables(damaged, "the file");
      ASSERT_FALSE(parsed) << at;
      EXPECT_EQ(parsed.error().code, ErrorCode::kCorrupt);
      EXPECT_THAT(parsed.error().message, HasSubstr("the file"));
    }
    EXPECT_FALSE(ParseTables(std::span(file).first(at), "x")) << at;
  }
  auto longer = file;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(ParseTables(longer, "x"));
}

TEST(CodecTables, AFileThatIsNotThereSaysWhatMakesOne) {
  const auto loaded = LoadTables("/nowhere/a.tables");
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(loaded.error().message, HasSubstr("kvcake codec fit"));
  EXPECT_FALSE(LoadTables("/"));
  EXPECT_FALSE(SaveTables(SomeTables(), "/nowhere/a.tables"));
}

}  // namespace
}  // namespace kvcake
