#include "runahead/kv_pieces.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace kvcake {
namespace {

// Calls visit(bytes of the piece's tokens in the slab, their offset in the packed piece).
template <typename Visit>
void ForEachRun(const KvLayout& layout, const KvPiece& piece, Visit&& visit) {
  const size_t row = static_cast<size_t>(layout.head_dim) * sizeof(uint16_t);
  const size_t run = row * (piece.end - piece.begin), plane = row * layout.chunk_tokens;
  for (int head = 0; head < 2 * layout.kv_heads; ++head) {  // of K, then of V
    visit(head * plane + piece.begin * row, head * run, run);
  }
}

}  // namespace

std::vector<KvPiece> PiecesOf(int begin, int end, int chunk_tokens) {
  std::vector<KvPiece> pieces;
  for (int at = begin; at < end;) {
    const int chunk = at / chunk_tokens, first = chunk * chunk_tokens;
    const int to = std::min(end, first + chunk_tokens);
    pieces.push_back({.chunk = chunk, .begin = at - first, .end = to - first});
    at = to;
  }
  return pieces;
}

std::span<std::byte> SlabOf(const PagePool& pool, PageId page, int layer) {
  return {reinterpret_cast<std::byte*>(pool.Slab(page, layer)), pool.layout().slab_payload_bytes()};
}

void PackPiece(const PagePool& pool, PageId page, int layer, const KvPiece& piece,
               std::span<std::byte> out) {
  CHECK(out.size() == piece.bytes(pool.layout()));
  const std::byte* slab = SlabOf(pool, page, layer).data();
  ForEachRun(pool.layout(), piece, [&](size_t in_slab, size_t packed, size_t bytes) {
    std::memcpy(out.data() + packed, slab + in_slab, bytes);
  });
}

void UnpackPiece(const PagePool& pool, PageId page, int layer, const KvPiece& piece,
                 std::span<const std::byte> from) {
  CHECK(from.size() == piece.bytes(pool.layout()));
  std::byte* slab = SlabOf(pool, page, layer).data();
  ForEachRun(pool.layout(), piece, [&](size_t in_slab, size_t packed, size_t bytes) {
    std::memcpy(slab + in_slab, from.data() + packed, bytes);
  });
}

}  // namespace kvcake
