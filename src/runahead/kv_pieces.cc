#include "runahead/kv_pieces.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "base/check.h"

namespace kvcake {
namespace {

// A piece's tokens in a slab: in so many runs, which lie one behind the other where they are
// packed.
struct Runs {
  Runs(const KvLayout& layout, const KvPiece& piece, std::span<std::byte> slab)
      : count(piece.whole(layout) ? 1 : 2 * layout.kv_heads),  // of K, then of V
        bytes(piece.bytes(layout) / count),
        slab(slab),
        first(layout.head_dim * sizeof(uint16_t) * piece.begin) {}

  std::span<std::byte> operator[](int run) const {
    return slab.subspan(first + run * (slab.size() / count), bytes);
  }

  const int count;
  const size_t bytes;  // of each
  const std::span<std::byte> slab;
  const size_t first;
};

// Calls `done` when what it returns has been called so many times.
std::function<void()> AfterAll(int count, std::function<void()> done) {
  if (count == 1) return done;
  struct Waiting {
    std::atomic<int> left;
    const std::function<void()> done;
  };
  const auto waiting = std::shared_ptr<Waiting>(new Waiting{count, std::move(done)});
  return [waiting] {
    if (--waiting->left == 0) waiting->done();
  };
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

void PackPiece(PageCopier* copier, const PagePool& pool, PageId page, int layer,
               const KvPiece& piece, std::span<std::byte> out, std::function<void()> done) {
  CHECK(out.size() == piece.bytes(pool.layout()));
  const Runs runs(pool.layout(), piece, SlabOf(pool, page, layer));
  const auto copied = AfterAll(runs.count, std::move(done));
  for (int i = 0; i < runs.count; ++i) {
    const std::span to = out.subspan(i * runs.bytes, runs.bytes);
    if (copier != nullptr) {
      copier->FromPage(to, runs[i], copied);
    } else {
      std::ranges::copy(runs[i], to.begin());
      copied();
    }
  }
}

void UnpackPiece(PageCopier* copier, const PagePool& pool, PageId page, int layer,
                 const KvPiece& piece, std::span<const std::byte> from,
                 std::function<void()> done) {
  CHECK(from.size() == piece.bytes(pool.layout()));
  const Runs runs(pool.layout(), piece, SlabOf(pool, page, layer));
  const auto copied = AfterAll(runs.count, std::move(done));
  for (int i = 0; i < runs.count; ++i) {
    const std::span bytes = from.subspan(i * runs.bytes, runs.bytes);
    if (copier != nullptr) {
      copier->ToPage(runs[i], bytes, copied);
    } else {
      std::ranges::copy(bytes, runs[i].begin());
      copied();
    }
  }
}

}  // namespace kvcake
