// The stretches of tokens in which a prompt's KV cache is sent: a chunk, or the part of one that a
// rank computes.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "kv/page_copier.h"
#include "kv/page_pool.h"

namespace kvcake {

// Tokens [begin, end) of chunk `chunk`, counted from its first.
struct KvPiece {
  int chunk = 0;
  int begin = 0, end = 0;

  bool whole(const KvLayout& layout) const { return end - begin == layout.chunk_tokens; }
  // Counts one layer.
  size_t bytes(const KvLayout& layout) const {
    return layout.slab_payload_bytes() / layout.chunk_tokens * (end - begin);
  }
  friend bool operator==(const KvPiece&, const KvPiece&) = default;
};

// In ascending order, what covers the tokens [begin, end).
std::vector<KvPiece> PiecesOf(int begin, int end, int chunk_tokens);

// A whole chunk's layer is one stretch of its page. Of a part, the rows of every head are copied,
// [K or V][kv_head][token][head_dim].
std::span<std::byte> SlabOf(const PagePool& pool, PageId page, int layer);
// `done` is called when all has been copied: by the copier, or where pages are the host's memory
// and there is none, before they return.
void PackPiece(PageCopier* copier, const PagePool& pool, PageId page, int layer,
               const KvPiece& piece, std::span<std::byte> out, std::function<void()> done);
void UnpackPiece(PageCopier* copier, const PagePool& pool, PageId page, int layer,
                 const KvPiece& piece, std::span<const std::byte> from, std::function<void()> done);

}  // namespace kvcake
