#include "store/disk_read.h"

#include <gtest/gtest.h>

#include <cstring>

#include "store/chunk_format.h"
#include "store/disk_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class DiskReadTest : public testing::Test {
 protected:
  // The page as a file of the chunk is.
  DiskReadTest() {
    std::memset(page_.span().data(), 0, page_.span().size());
    for (int layer = 0; layer < layout_.layers; ++layer) {
      page_.span()[layout_.slab_offset(layer)] = static_cast<std::byte>(layer + 1);
    }
    ChunkHeader header;
    header.root = options_.root;
    header.key = key_;
    header.parent = Root();
    header.layout = layout_;
    header.numeric_path = NumericPath::kF32Fma;
    header.slab_checksums = SlabChecksums(layout_, page_.span());
    EncodeHeader(HeaderBytes(page_.span().first<kPageHeaderBytes>()), header);
  }
  DiskRead Read(std::span<std::byte> landing, std::optional<LayerRange> layers = {}) {
    return DiskRead(
        {.key = key_, .parent = Root(), .landing = landing, .done = {}, .layers = layers},
        options_);
  }
  void Fill(const DiskRead& read) {
    for (const DiskRead::Piece& piece : read.pieces) {
      std::memcpy(piece.buffer.data(), &page_.span()[piece.offset], piece.buffer.size());
    }
  }

  const KvLayout layout_ = SmallLayout();
  DiskTierOptions options_ = SmallOptions("nowhere");
  const ChunkKey key_ = Chain(1)[0];
  PageBuffer page_{layout_}, landing_{layout_};
};

TEST_F(DiskReadTest, AChunkIsReadInPiecesThatCoverIt) {
  options_.io_bytes_max = 2 * kDirectAlign;
  const DiskRead read = Read(landing_.span());
  EXPECT_LE(read.pieces.size(), PiecesMax(options_));
  uint64_t at = 0;
  for (const DiskRead::Piece& piece : read.pieces) {
    EXPECT_EQ(piece.offset, at);
    EXPECT_LE(piece.buffer.size(), options_.io_bytes_max);
    at += piece.buffer.size();
  }
  EXPECT_EQ(at, layout_.page_bytes());
  Fill(read);
  EXPECT_EQ(VerifyLanded(read, options_), NumericPath::kF32Fma);
}

TEST_F(DiskReadTest, SomeLayersAreReadWithAHeaderOfTheirOwn) {
  const uint64_t bytes = 2 * layout_.slab_bytes();
  const auto into = landing_.span().subspan(layout_.slab_offset(1), bytes);
  const DiskRead read = Read(into, LayerRange{.first = 1, .count = 2});
  ASSERT_EQ(read.pieces.size(), 2u);
  EXPECT_EQ(read.pieces[1].offset, layout_.slab_offset(1));
  EXPECT_EQ(read.pieces[1].buffer.data(), into.data());
  Fill(read);
  EXPECT_EQ(VerifyLanded(read, options_), NumericPath::kF32Fma);
  into[bytes - 1] ^= std::byte{1};
  const auto verified = VerifyLanded(read, options_);
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code, ErrorCode::kCorrupt);
}

TEST_F(DiskReadTest, AnotherChunkIsNotTheOneThatWasAskedFor) {
  DiskRead read = Read(landing_.span());
  Fill(read);
  read.request.parent = key_;
  EXPECT_FALSE(VerifyLanded(read, options_));
  read.request.parent = Root();
  EXPECT_TRUE(VerifyLanded(read, options_));
  read.request.key = Root();
  EXPECT_FALSE(VerifyLanded(read, options_));
}

}  // namespace
}  // namespace kvcake
