// Parts that a second implementation has written (testdata/make_golden.py), byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/source_dir_testing.h"
#include "codec/codec.h"

namespace kvcake {
namespace {

constexpr KvLayout kGoldenLayout = {
    .layers = 1, .kv_heads = 2, .head_dim = 24, .chunk_tokens = 160};

std::vector<std::byte> Golden(const std::string& name) {
  std::ifstream file(SourceDir() + "/src/codec/testdata/" + name, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_FALSE(text.empty()) << name;
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<uint16_t> GoldenSlab(const std::string& name) {
  const auto bytes = Golden(name);
  std::vector<uint16_t> slab(2 * kGoldenLayout.plane_elements());
  EXPECT_EQ(bytes.size(), 2 * slab.size());
  std::memcpy(slab.data(), bytes.data(), std::min(bytes.size(), 2 * slab.size()));
  return slab;
}

// The files of a codec: NAME.part, NAME.slab where it loses something, NAME.tables where it has
// some; of another position than 0, NAME-POSITION.part and NAME-POSITION.slab.
void ExpectGolden(const std::string& name, int64_t position = 0) {
  const SlabPlace place{.layer = 0, .position = position};
  const std::string file = position == 0 ? name : fmt::format("{}-{}", name, position);
  const CodecRow& row = **CodecNamed(name);
  const std::string dir = SourceDir() + "/src/codec/testdata/";
  std::optional<CodecTables> tables;
  if (row.fit != nullptr) tables = LoadTables(dir + name + ".tables").value();
  const auto codec =
      MakeCodec(row.codec, {.layout = kGoldenLayout, .tables = tables ? &*tables : nullptr})
          .value();
  std::vector<std::byte> part(codec->part_bytes_max());
  part.resize(codec->Encode(place, GoldenSlab("slab.bin"), part).value());
  EXPECT_EQ(part, Golden(file + ".part"));
  std::vector<uint16_t> decoded(2 * kGoldenLayout.plane_elements());
  ASSERT_TRUE(codec->Decode(place, Golden(file + ".part"), decoded));
  EXPECT_EQ(decoded, GoldenSlab(row.lossy ? file + ".slab" : "slab.bin"));
}

TEST(Golden, LosslessIsWhatTheSpecificationSays) { ExpectGolden("lossless"); }
TEST(Golden, Int8IsWhatTheSpecificationSays) { ExpectGolden("int8"); }
TEST(Golden, KvQuant3IsWhatTheSpecificationSays) {
  ExpectGolden("kvquant3");
  ExpectGolden("kvquant3", 4096);
}
TEST(Golden, CacheGenIsWhatTheSpecificationSays) { ExpectGolden("cachegen"); }

}  // namespace
}  // namespace kvcake
