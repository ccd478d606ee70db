// The header of an encoded chunk, and what it says of the file.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>

#include "base/hash.h"
#include "base/source_dir_testing.h"
#include "codec/codec.h"
#include "store/chunk_form.h"
#include "store/chunk_format.h"
#include "store/tier_testing.h"
#include "store/verify_read.h"

namespace kvcake {
namespace {

using namespace testing_util;

// Parts of any bytes, of 64, 128, ... bytes.
ChunkHeader ExampleHeader(const KvLayout& layout) {
  const auto chain = Chain(2);
  ChunkHeader header;
  header.root = Root();
  header.key = chain[1];
  header.parent = chain[0];
  header.layout = layout;
  header.codec = Codec::kCacheGen;
  header.numeric_path = NumericPath::kBf16Dot;
  header.position = 16;
  header.tables.fill(7);
  for (int layer = 0; layer < layout.layers; ++layer) {
    header.parts.push_back({.bytes = kPartAlign * (layer + 1), .checksum = 0});
  }
  return header;
}

std::vector<std::byte> ExampleFile(ChunkHeader& header) {
  std::vector<std::byte> file(header.file_bytes());
  std::mt19937 random(1);
  for (int layer = 0; layer < header.layout.layers; ++layer) {
    const auto part =
        std::span(file).subspan(header.layer_offset(layer), header.layer_bytes(layer));
    for (std::byte& byte : part) byte = static_cast<std::byte>(random());
    header.parts[layer].checksum = Xxh3_64(part);
  }
  EncodeHeader(HeaderBytes(std::span(file).first<kPageHeaderBytes>()), header);
  return file;
}

class EncodedFormatTest : public testing::Test {
 protected:
  HeaderBytes bytes() { return HeaderBytes(std::span(file_).first<kPageHeaderBytes>()); }
  void Reseal() {
    const uint64_t sum = Xxh3_64(bytes().first(4088));
    for (int i = 0; i < 8; ++i) bytes()[4088 + i] = static_cast<std::byte>(sum >> (8 * i));
  }

  ChunkHeader header_ = ExampleHeader(SmallLayout());
  std::vector<std::byte> file_ = ExampleFile(header_);
};

TEST_F(EncodedFormatTest, MoreThanAnyLandingHasRoomForIsRefused) {
  const ChunkKind kind{header_.root,
                       header_.layout,
                       {.codec = header_.codec, .tables = header_.tables, .part_bytes_max = 4096}};
  const ReadRequest request{header_.key, header_.parent, {}, nullptr};
  for (ChunkPart& part : header_.parts) part.bytes = 4096;
  EncodeHeader(bytes(), header_);
  EXPECT_TRUE(DecodeHeaderFor(bytes(), request, kind));
  header_.parts[0].bytes += kPartAlign;
  EncodeHeader(bytes(), header_);
  const auto refused = DecodeHeaderFor(bytes(), request, kind);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
}

TEST_F(EncodedFormatTest, HeadersComeBackAsTheyWere) {
  const auto decoded = DecodeChunk(file_);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(*decoded, header_);
  EXPECT_EQ(decoded->layer_offset(2), 4096u + 64 + 128);
  EXPECT_EQ(decoded->file_bytes(), 8192u);
  ChunkHeader other = header_;
  other.tables[0] ^= 1;
  EXPECT_NE(CheckSameChunk(other, header_).error().message.find("tables"), std::string::npos);
  other = header_;
  other.codec = Codec::kInt8;
  EXPECT_NE(CheckSameChunk(other, header_).error().message.find("codec"), std::string::npos);
}

TEST_F(EncodedFormatTest, EveryDamagedByteIsFound) {
  for (size_t at = 0; at < file_.size(); ++at) {
    file_[at] ^= std::byte{1};
    ASSERT_EQ(DecodeChunk(file_).error().code, ErrorCode::kCorrupt) << at;
    file_[at] ^= std::byte{1};
  }
  for (size_t bytes = 0; bytes < file_.size(); bytes += 61) {
    ASSERT_EQ(DecodeChunk(std::span(file_).first(bytes)).error().code, ErrorCode::kCorrupt);
  }
}

TEST_F(EncodedFormatTest, FieldsThatNoWriterWroteAreRefusedEvenWithARightChecksum) {
  const auto is_free = [](size_t at) {
    const bool checksum = at >= 256 && at < 256 + 3 * 28 && (at - 256) % 28 < 8;
    const bool position = at >= 72 && at < 77;
    return (at >= 96 && at < 224) || at == 42 || at == 44 || at == 45 || checksum || position;
  };
  for (size_t at = 0; at < 4088; ++at) {
    if (is_free(at)) continue;
    bytes()[at] ^= std::byte{0x10};
    Reseal();
    const auto header = DecodeHeader(bytes());
    // Sizes of parts may be others', and then the file is longer.
    EXPECT_FALSE(header && CheckFileBytes(*header, file_.size()) && VerifySlabs(*header, file_))
        << at;
    bytes()[at] ^= std::byte{0x10};
  }
  Reseal();
  EXPECT_TRUE(DecodeHeader(bytes()));
}

TEST_F(EncodedFormatTest, APartOfNoBytesIsRefused) {
  const size_t units_at = 256 + 28 + 8;  // the second layer's
  std::fill_n(bytes().begin() + units_at, 4, std::byte{0});
  Reseal();
  const auto header = DecodeHeader(bytes());
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().message, "the part of layer 1 is empty");
}

TEST_F(EncodedFormatTest, CodecsThatAreNotThereAreRefused) {
  for (const int codec : {0, 5, 0x4001}) {
    bytes()[42] = static_cast<std::byte>(codec);
    bytes()[43] = static_cast<std::byte>(codec >> 8);
    Reseal();
    const auto header = DecodeHeader(bytes());
    ASSERT_FALSE(header) << codec;
    EXPECT_EQ(header.error().message,
              fmt::format("codec is {}, which is none of an encoded chunk", codec));
  }
}

TEST(EncodedFormatLimitsTest, TheDeepestModelFitsTheHeader) {
  KvLayout layout{.layers = kEncodedLayersMax, .kv_heads = 1, .head_dim = 2, .chunk_tokens = 2};
  ASSERT_TRUE(CheckStorable(layout, Codec::kInt8));
  ChunkHeader header = ExampleHeader(layout);
  const auto file = ExampleFile(header);
  EXPECT_EQ(*DecodeChunk(file), header);
  layout.layers = kEncodedLayersMax + 1;
  EXPECT_EQ(CheckStorable(layout, Codec::kInt8).error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(CheckStorable(layout));
}

TEST(ChunkFormTest, RootsOfFormsDiffer) {
  std::vector<ChunkKey> roots = {FormRoot(Root(), {})};
  EXPECT_EQ(roots[0], Root()) << "raw chunks lie where they always did";
  ChunkForm form{.codec = Codec::kLossless, .part_bytes_max = 64};
  roots.push_back(FormRoot(Root(), form));
  form.codec = Codec::kCacheGen;
  roots.push_back(FormRoot(Root(), form));
  form.tables[3] = 1;
  roots.push_back(FormRoot(Root(), form));
  form.part_bytes_max = 128;
  EXPECT_EQ(FormRoot(Root(), form), roots.back());
  std::sort(roots.begin(), roots.end());
  EXPECT_EQ(std::unique(roots.begin(), roots.end()), roots.end());
}

// A file written by version 2 when it was new, by another program (testdata/make_golden.py); every
// later build must read it.
TEST(EncodedFormatGoldenTest, TheGoldenFileStaysReadable) {
  std::ifstream in(SourceDir() + "/src/store/testdata/chunk_v2.bin", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto file = std::as_bytes(std::span(text));
  const auto header = DecodeChunk(file);
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->layout,
            (KvLayout{.layers = 2, .kv_heads = 1, .head_dim = 4, .chunk_tokens = 8}));
  EXPECT_EQ(header->codec, Codec::kInt8);
  EXPECT_EQ(header->position, 8);
  EXPECT_EQ(header->tables, Digest{});
  EXPECT_EQ(header->root, KvIdentity().Add("model", "golden").Root());
  ASSERT_EQ(header->parts.size(), 2u);
  EXPECT_EQ(header->parts[0].bytes, 128u);
  EXPECT_EQ(header->parts[1].bytes, 64u);
  std::vector<std::byte> again(kPageHeaderBytes);
  EncodeHeader(HeaderBytes(std::span(again).first<kPageHeaderBytes>()), *header);
  EXPECT_TRUE(std::ranges::equal(again, file.first(kPageHeaderBytes)));
}

}  // namespace
}  // namespace kvcake
