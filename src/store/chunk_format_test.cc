#include "store/chunk_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/hash.h"
#include "base/source_dir_testing.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

ChunkHeader ExampleHeader(const PageBuffer& page, const KvLayout& layout) {
  const auto chain = Chain(2);
  ChunkHeader header;
  header.root = Root();
  header.key = chain[1];
  header.parent = chain[0];
  header.layout = layout;
  header.numeric_path = NumericPath::kBf16Dot;
  header.slab_checksums.assign(layout.layers, 0);
  return header;
}

class ChunkFormatTest : public testing::Test {
 protected:
  ChunkFormatTest() : page_(layout_) {
    FillPage(Chain(2)[1], page_.span());
    header_ = ExampleHeader(page_, layout_);
    header_.slab_checksums = SlabChecksums(layout_, page_.span());
    EncodeHeader(bytes(), header_);
  }
  HeaderBytes bytes() { return page_.span().first<kPageHeaderBytes>(); }

  // Writes the checksum that belongs to the bytes as they are now.
  void Reseal() {
    const uint64_t sum = Xxh3_64(bytes().first(4088));
    for (int i = 0; i < 8; ++i) bytes()[4088 + i] = static_cast<std::byte>(sum >> (8 * i));
  }

  const KvLayout layout_ = SmallLayout();
  PageBuffer page_;
  ChunkHeader header_;
};

TEST_F(ChunkFormatTest, HeadersComeBackAsTheyWere) {
  const auto decoded = DecodeHeader(bytes());
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(*decoded, header_);
  EXPECT_TRUE(CheckSameChunk(*decoded, header_));
  EXPECT_TRUE(VerifySlabs(*decoded, page_.span()));
}

TEST_F(ChunkFormatTest, FieldsLieWhereTheSpecificationSays) {
  const auto u32 = [&](size_t at) {
    uint32_t v = 0;
    for (int i = 3; i >= 0; --i) v = v << 8 | static_cast<uint32_t>(bytes()[at + i]);
    return v;
  };
  EXPECT_EQ(std::memcmp(bytes().data(), "KVCAKE\x1a\n", 8), 0);
  EXPECT_EQ(u32(8), 1u);
  EXPECT_EQ(u32(12), 4096u);
  EXPECT_EQ(u32(24), 3u);   // layers
  EXPECT_EQ(u32(28), 2u);   // KV heads
  EXPECT_EQ(u32(32), 9u);   // head dimension
  EXPECT_EQ(u32(36), 16u);  // tokens
  EXPECT_EQ(u32(40), 1u);   // dtype bf16, codec raw
  EXPECT_EQ(u32(44), 1u);   // numeric path
  EXPECT_EQ(u32(48), 4096u * 4);
  EXPECT_EQ(u32(56), 4096u);
  EXPECT_EQ(u32(64), 1152u);
  EXPECT_EQ(std::memcmp(&bytes()[96], header_.key.digest.data(), 32), 0);
  EXPECT_EQ(std::memcmp(&bytes()[128], header_.parent.digest.data(), 32), 0);
  EXPECT_EQ(std::memcmp(&bytes()[160], header_.root.digest.data(), 32), 0);
  EXPECT_EQ(u32(192), static_cast<uint32_t>(header_.slab_checksums[0]));
}

TEST_F(ChunkFormatTest, EveryFlippedHeaderBitIsFound) {
  for (size_t at = 0; at < kPageHeaderBytes; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes()[at] ^= static_cast<std::byte>(1 << bit);
      ASSERT_EQ(DecodeHeader(bytes()).error().code, ErrorCode::kCorrupt) << at;
      bytes()[at] ^= static_cast<std::byte>(1 << bit);
    }
  }
  EXPECT_TRUE(DecodeHeader(bytes()));
}

TEST_F(ChunkFormatTest, FieldsThatNoWriterWroteAreRefusedEvenWithARightChecksum) {
  const size_t keys_begin = 96, checksums_end = 192 + 3 * 8;
  for (size_t at = 0; at < 4088; ++at) {
    const bool free_value = (at >= keys_begin && at < checksums_end) || at == 44 || at == 45;
    if (free_value) continue;
    bytes()[at] ^= std::byte{0x10};
    Reseal();
    EXPECT_FALSE(DecodeHeader(bytes())) << at;
    bytes()[at] ^= std::byte{0x10};
  }
  Reseal();
  EXPECT_TRUE(DecodeHeader(bytes()));
}

// A reader of a file that says so would divide by zero, or look behind the header.
TEST_F(ChunkFormatTest, DimensionsThatNoModelHasAreRefusedByName) {
  const auto refusal = [&](size_t at, uint32_t value) {
    EncodeHeader(bytes(), header_);
    for (int i = 0; i < 4; ++i) bytes()[at + i] = static_cast<std::byte>(value >> (8 * i));
    Reseal();
    const auto header = DecodeHeader(bytes());
    return header ? std::string() : header.error().message;
  };
  for (const auto& [at, field] : {std::pair(24u, "layers"), std::pair(28u, "kv_heads"),
                                  std::pair(32u, "head_dim"), std::pair(36u, "chunk_tokens")}) {
    for (const uint32_t value : {0u, (1u << 20) + 1}) {
      EXPECT_EQ(refusal(at, value),
                fmt::format("{} is {}, must be in [1, {}]", field, value, 1u << 20));
    }
  }
  EXPECT_EQ(refusal(24, kChunkLayersMax + 1),
            fmt::format("layers is {}, must be at most {}", kChunkLayersMax + 1, kChunkLayersMax));
}

TEST_F(ChunkFormatTest, EachNumericPathComesBack) {
  for (const NumericPath path :
       {NumericPath::kUnknown, NumericPath::kBf16Dot, NumericPath::kF32Fma, NumericPath::kF32,
        NumericPath::kBf16Tensor, NumericPath::kBf16Amx}) {
    header_.numeric_path = path;
    EncodeHeader(bytes(), header_);
    EXPECT_EQ(DecodeHeader(bytes())->numeric_path, path);
  }
}

TEST_F(ChunkFormatTest, ANumericPathOfALaterVersionIsUnknown) {
  bytes()[44] = std::byte{77};
  Reseal();
  EXPECT_EQ(DecodeHeader(bytes())->numeric_path, NumericPath::kUnknown);
}

TEST_F(ChunkFormatTest, EverySlabIsChecked) {
  for (size_t at = kPageHeaderBytes; at < page_.span().size(); at += 101) {
    page_.span()[at] ^= std::byte{1};
    const auto status = VerifySlabs(header_, page_.span());
    ASSERT_FALSE(status) << at;
    const auto layer = (at - kPageHeaderBytes) / layout_.slab_bytes();
    EXPECT_NE(status.error().message.find(fmt::format("layer {} ", layer)), std::string::npos);
    page_.span()[at] ^= std::byte{1};
  }
}

TEST_F(ChunkFormatTest, AnotherChunkIsNamedByWhatDiffers) {
  const auto message = [&](auto change) {
    ChunkHeader other = header_;
    change(other);
    const auto status = CheckSameChunk(other, header_);
    return status ? std::string() : status.error().message;
  };
  EXPECT_NE(message([](auto& h) { h.root.digest[31] ^= 1; }).find("root"), std::string::npos);
  EXPECT_NE(message([](auto& h) { h.key.digest[0] ^= 1; }).find("key"), std::string::npos);
  EXPECT_NE(message([](auto& h) { h.parent.digest[9] ^= 1; }).find("parent"), std::string::npos);
  EXPECT_NE(message([](auto& h) { h.layout.kv_heads = 1; }).find("layout"), std::string::npos);
  EXPECT_NE(message([](auto& h) { h.encryption.emplace(); }).find("encryption"), std::string::npos);
  EXPECT_EQ(message([](auto& h) { h.numeric_path = NumericPath::kF32; }), "");
}

TEST(ChunkFormatLimitsTest, TheDeepestModelFitsTheHeader) {
  KvLayout layout{.layers = kChunkLayersMax, .kv_heads = 1, .head_dim = 2, .chunk_tokens = 2};
  ASSERT_TRUE(CheckStorable(layout));
  PageBuffer page(layout);
  ChunkHeader header = ExampleHeader(page, layout);
  header.slab_checksums = SlabChecksums(layout, page.span());
  EncodeHeader(page.span().first<kPageHeaderBytes>(), header);
  EXPECT_EQ(*DecodeHeader(page.span().first<kPageHeaderBytes>()), header);
  layout.layers = kChunkLayersMax + 1;
  EXPECT_EQ(CheckStorable(layout).error().code, ErrorCode::kUnsupported);
  layout.layers = 0;
  const auto empty = CheckStorable(layout);
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().code, ErrorCode::kInvalidArgument);
}

TEST(ChunkFormatLimitsTest, WhatVerifyWouldTakeForNoChunkIsNotStored) {
  // Slabs of 64 MiB; with the header all of them are a little more than 4 GiB.
  KvLayout layout{.layers = 64, .kv_heads = 64, .head_dim = 128, .chunk_tokens = 2048};
  const auto large = CheckStorable(layout);
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(large.error().message, testing::HasSubstr("chunks of fewer tokens"));
  layout.layers = 63;
  EXPECT_TRUE(CheckStorable(layout));
}

std::string GoldenFile() {
  std::ifstream in(SourceDir() + "/src/store/testdata/chunk_v1.bin", std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A file written by version 1 when it was new, by another program (testdata/make_golden.py); every
// later build must read it.
TEST(ChunkFormatGoldenTest, TheGoldenFileStaysReadable) {
  const std::string text = GoldenFile();
  const KvLayout layout{.layers = 2, .kv_heads = 1, .head_dim = 4, .chunk_tokens = 8};
  ASSERT_EQ(text.size(), layout.page_bytes());
  const auto file = std::as_bytes(std::span(text));
  const auto header = DecodeChunk(file);
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->layout, layout);
  EXPECT_EQ(header->numeric_path, NumericPath::kBf16Dot);
  EXPECT_EQ(header->root, KvIdentity().Add("model", "golden").Root());
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  const auto chain = ChunkKeys(header->root, tokens, 8);
  EXPECT_EQ(header->parent, chain[0]);
  EXPECT_EQ(header->key, chain[1]);
  std::vector<std::byte> again(kPageHeaderBytes);
  EncodeHeader(HeaderBytes(std::span(again).first<kPageHeaderBytes>()), *header);
  EXPECT_TRUE(std::ranges::equal(again, file.first(kPageHeaderBytes)));
  // Payload bytes count up from the layer's number; padding is zero.
  for (int layer = 0; layer < layout.layers; ++layer) {
    for (uint64_t i = 0; i < layout.slab_bytes(); ++i) {
      const auto expected = static_cast<std::byte>(i < layout.slab_payload_bytes() ? layer + i : 0);
      ASSERT_EQ(file[layout.slab_offset(layer) + i], expected) << layer << " " << i;
    }
  }
}

TEST(ChunkFormatGoldenTest, AnotherVersionOrLengthIsRefusedByName) {
  const auto refusal = [](std::string text) {
    const auto chunk = DecodeChunk(std::as_bytes(std::span(text)));
    return chunk ? std::string() : chunk.error().message;
  };
  const std::string golden = GoldenFile();
  EXPECT_EQ(refusal(golden), "");
  std::string later = golden;
  later[8] = 3;
  EXPECT_EQ(refusal(later), "version is 3, must be 1 or 2");
  EXPECT_EQ(refusal(""), "it has 0 bytes, fewer than a header");
  EXPECT_EQ(refusal(golden.substr(0, 8192)), "it has 8192 bytes, must have 12288");
  EXPECT_EQ(refusal(golden + "x"), "it has 12289 bytes, must have 12288");
}

// The tables in docs/format.md leave no byte of the headers out, and the code agrees on where their
// fields end: a byte of each is flipped in EveryByteClassOfAFileIsVerified.
TEST(ChunkFormatDocumentTest, TheTablesCoverTheHeaders) {
  std::ifstream in(SourceDir() + "/docs/format.md");
  for (const auto& [version, fields, layer_bytes, layers_max] :
       {std::tuple(1, 21u, 8, kChunkLayersMax), std::tuple(2, 25u, 28, kEncodedLayersMax)}) {
    SCOPED_TRACE(version);
    std::string line;
    std::vector<std::pair<size_t, std::string>> rows;  // offset, bytes
    while ((rows.empty() || rows.back().first != 4088) && std::getline(in, line)) {
      size_t offset = 0;
      char bytes[32];
      if (std::sscanf(line.c_str(), "| %zu | %31[^|] |", &offset, bytes) == 2) {
        rows.emplace_back(offset, bytes);
      }
    }
    std::erase_if(rows, [](const auto& row) { return !isdigit(row.second[0]); });
    ASSERT_EQ(rows.size(), fields);
    size_t end = 0;
    for (const auto& [offset, bytes] : rows) {
      if (offset == 4088) continue;  // after the reserved bytes that follow the last layer
      EXPECT_EQ(offset, end);
      const bool of_layers = bytes.starts_with(fmt::format("{} * layers", layer_bytes));
      end = offset + (of_layers ? layer_bytes * layers_max : std::stoul(bytes));
    }
    EXPECT_LE(end, 4088u);
    EXPECT_GT(end + layer_bytes, 4088u) << "a layer more would fit";
    EXPECT_EQ(rows.back(), std::pair(size_t{4088}, std::string("8 ")));
  }
}

// Sizes that overflow 64 bits must not come out small again.
TEST_F(ChunkFormatTest, LayoutsBeyondAnyMemoryAreRefused) {
  for (const size_t at : {28u, 32u, 36u}) {  // KV heads, head dimension, tokens: 2^20
    for (int i = 0; i < 4; ++i) bytes()[at + i] = static_cast<std::byte>(i == 2 ? 0x10 : 0);
  }
  bytes()[24] = std::byte{4};
  for (int i = 0; i < 8; ++i) bytes()[48 + i] = static_cast<std::byte>(i == 1 ? 0x10 : 0);
  Reseal();
  const auto header = DecodeHeader(bytes());
  ASSERT_FALSE(header);
  EXPECT_NE(header.error().message.find("a slab has"), std::string::npos);
}

}  // namespace
}  // namespace kvcake
