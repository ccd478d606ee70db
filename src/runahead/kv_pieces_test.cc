#include "runahead/kv_pieces.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace kvcake {
namespace {

TEST(KvPiecesTest, CoverTheTokensInOrder) {
  EXPECT_TRUE(PiecesOf(5, 5, 16).empty());
  EXPECT_EQ(PiecesOf(0, 32, 16), (std::vector<KvPiece>{{0, 0, 16}, {1, 0, 16}}));
  EXPECT_EQ(PiecesOf(10, 33, 16), (std::vector<KvPiece>{{0, 10, 16}, {1, 0, 16}, {2, 0, 1}}));
  EXPECT_EQ(PiecesOf(18, 20, 16), (std::vector<KvPiece>{{1, 2, 4}}));
}

// Parts of a chunk, packed on one side and unpacked on the other in any order, make it whole.
TEST(KvPiecesTest, PartsMakeTheChunk) {
  const KvLayout layout{.layers = 2, .kv_heads = 3, .head_dim = 8, .chunk_tokens = 16};
  const auto from = PagePool::Create(layout, layout.page_bytes()).value();
  const auto to = PagePool::Create(layout, layout.page_bytes()).value();
  const PageHandle a = *from->Draw(), b = *to->Draw();
  std::mt19937 rng(3);
  for (int round = 0; round < 50; ++round) {
    for (int layer = 0; layer < layout.layers; ++layer) {
      for (std::byte& byte : SlabOf(*from, a.id(), layer)) byte = static_cast<std::byte>(rng());
      std::memset(SlabOf(*to, b.id(), layer).data(), 0, layout.slab_payload_bytes());
      const int cut = 1 + static_cast<int>(rng() % 15);
      std::vector<KvPiece> pieces = {{0, 0, cut}, {0, cut, 16}};
      if (rng() % 2 == 0) std::swap(pieces[0], pieces[1]);
      for (const KvPiece& piece : pieces) {
        EXPECT_FALSE(piece.whole(layout));
        std::vector<std::byte> packed(piece.bytes(layout));
        PackPiece(nullptr, *from, a.id(), layer, piece, packed, [] {});
        UnpackPiece(nullptr, *to, b.id(), layer, piece, packed, [] {});
      }
      EXPECT_EQ(std::memcmp(SlabOf(*from, a.id(), layer).data(), SlabOf(*to, b.id(), layer).data(),
                            layout.slab_payload_bytes()),
                0);
    }
  }
}

}  // namespace
}  // namespace kvcake
