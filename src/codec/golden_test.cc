// Parts that a second implementation has written (testdata/make_golden.py), byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

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

void ExpectGolden(Codec row, const std::string& part_name, const std::string& slab_name) {
  const auto codec = MakeCodec(row, kGoldenLayout);
  std::vector<std::byte> part(codec->part_bytes_max());
  part.resize(codec->Encode(GoldenSlab("slab.bin"), part).value());
  EXPECT_EQ(part, Golden(part_name));
  std::vector<uint16_t> decoded(2 * kGoldenLayout.plane_elements());
  ASSERT_TRUE(codec->Decode(Golden(part_name), decoded));
  EXPECT_EQ(decoded, GoldenSlab(slab_name));
}

TEST(Golden, LosslessIsWhatTheSpecificationSays) {
  ExpectGolden(Codec::kLossless, "lossless.part", "slab.bin");
}

TEST(Golden, Int8IsWhatTheSpecificationSays) {
  ExpectGolden(Codec::kInt8, "int8.part", "int8.slab");
}

}  // namespace
}  // namespace kvcake
