#include "codec/codec_tables.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/temp_dir_testing.h"
#include "codec/codec.h"

namespace kvcake {
namespace {

using ::testing::HasSubstr;

CodecTables SomeTables() {
  return {.codec = Codec::kCacheGen,
          .level = 2,
          .layers = 3,
          .kv_heads = 4,
          .head_dim = 5,
          .model = 6,
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

TEST(CodecTables, WhatNoWriterWroteIsRefusedEvenWithARightChecksum) {
  const auto why = [](size_t at, int value) {
    auto file = TablesFile(SomeTables());
    file[at] = std::byte(value);
    const uint64_t checksum = Xxh3_64(std::span(file).subspan(16));
    std::memcpy(&file[8], &checksum, sizeof(checksum));
    const auto parsed = ParseTables(file, "x");
    return parsed ? "" : parsed.error().message;
  };
  EXPECT_EQ(why(16, 1), "");
  EXPECT_THAT(why(16, 2), HasSubstr("of a version that this kvcake does not read"));
  EXPECT_THAT(why(40, 4), HasSubstr("is cut, or too long"));
  for (const size_t at : {22, 24, 28, 32}) {  // level, layers, heads and their channels
    EXPECT_THAT(why(at, 0), HasSubstr("has a header that is not one")) << at;
  }
  EXPECT_THAT(why(27, 1), HasSubstr("has a header that is not one")) << "2^24 layers";
}

// By what its numbers are, not by how they are kept.
TEST(CodecTables, AModelIsToldFromOthers) {
  const auto identity = [](const char* theta) {
    return KvIdentity().Add("arch", "llama").Add("rope_theta", theta).Add("weights_digest", "ab");
  };
  const uint32_t model = TablesModel(identity("1e4"));
  EXPECT_NE(model, 0u);
  EXPECT_NE(model, TablesModel(identity("1e6")));
  EXPECT_NE(model, TablesModel(identity("1e4").Add("qk_norm", "rms")));
  EXPECT_EQ(model, TablesModel(identity("1e4")
                                   .Add("weights", "int8")
                                   .Add("chunk_tokens", 64)
                                   .Add("layout", "v1")
                                   .Add("shard", "all")
                                   .Add("arithmetic", 2)
                                   .Add("lossy", "int8")));
}

TEST(CodecTables, WhatIsWrongWithThemIsSaid) {
  const KvLayout layout{.layers = 3, .kv_heads = 4, .head_dim = 5};
  const CodecTables tables = SomeTables();
  const auto why = [&](const CodecSpec& spec, Codec codec = Codec::kCacheGen) -> std::string {
    const Status status = CheckTables(spec, codec, "this");
    return status ? "" : status.error().message;
  };
  EXPECT_EQ(why({.layout = layout, .tables = &tables}), "");
  EXPECT_EQ(why({.layout = layout, .tables = &tables, .model = 6}), "");
  EXPECT_THAT(why({.layout = layout, .tables = &tables, .model = 7}),
              HasSubstr("another model of the same shape"));
  EXPECT_THAT(why({.layout = layout}), HasSubstr("needs tables"));
  EXPECT_THAT(why({.layout = layout, .tables = &tables}, Codec::kKvQuant3),
              HasSubstr("codec this is given tables of codec cachegen"));
  const KvLayout wider{.layers = 3, .kv_heads = 4, .head_dim = 6};
  EXPECT_THAT(why({.layout = wider, .tables = &tables}),
              HasSubstr("3 layers of 4 heads of 5, this one 3 of 4 of 6"));
  const KvLayout deeper{.layers = 4, .kv_heads = 4, .head_dim = 5};
  EXPECT_THAT(why({.layout = deeper, .tables = &tables}), HasSubstr("this one 4 of 4 of 5"));
  CodecTables unknown = tables;
  unknown.model = 0;
  EXPECT_EQ(why({.layout = layout, .tables = &unknown, .model = 7}), "");
}

TEST(CodecTables, AFileThatIsNotThereSaysWhatMakesOne) {
  const auto loaded = LoadTables("/nowhere/a.tables");
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(loaded.error().message, HasSubstr("kvcake codec fit"));
  EXPECT_FALSE(LoadTables("/"));
  EXPECT_FALSE(SaveTables(SomeTables(), "/nowhere/a.tables"));
}

TEST(CodecTables, WhatCannotBeSavedLeavesNothing) {
  const TempDir dir;
  const std::string path = dir.path() + "/a.tables";
  std::filesystem::create_directory(path);
  EXPECT_FALSE(SaveTables(SomeTables(), path));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

// They lie in a store's directory, where others may write.
TEST(CodecTables, APipeIsNotWaitedFor) {
  const TempDir dir;
  const std::string path = dir.path() + "/a.tables";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto loaded = LoadTables(path);
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error().message, HasSubstr(path + " is not a regular file"));
}

}  // namespace
}  // namespace kvcake
