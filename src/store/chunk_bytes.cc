#include "store/chunk_bytes.h"

#include <cstring>

#include "base/check.h"

namespace kvcake {

ChunkBytes::ChunkBytes(const ChunkWrite& chunk, const ChunkKind& kind) {
  if (kind.form.raw()) {
    MakeRaw(chunk, kind);
    return;
  }
  // It takes 4 KiB to check that what others will trust for its header is the chunk's.
  const auto header = DecodeHeader(chunk.page.first<kPageHeaderBytes>());
  CHECK(header && CheckSameChunk(*header, kind.HeaderOf(chunk.key, chunk.parent)) &&
        CheckFileBytes(*header, chunk.page.size()));
  pieces_ = {chunk.page};
}

uint64_t ChunkBytes::bytes() const {
  uint64_t bytes = 0;
  for (const auto piece : pieces_) bytes += piece.size();
  return bytes;
}

void ChunkBytes::MakeRaw(const ChunkWrite& chunk, const ChunkKind& kind) {
  const KvLayout& layout = kind.layout;
  CHECK(chunk.page.size() >= layout.page_bytes());
  std::span<const std::byte> page = chunk.page;
  if (layout.slab_payload_bytes() < layout.slab_bytes()) {
    PadWithZeros(layout, page);
    page = std::as_bytes(std::span(padded_));
  }
  ChunkHeader header = kind.HeaderOf(chunk.key, chunk.parent);
  header.numeric_path = chunk.numeric_path;
  header.slab_checksums = SlabChecksums(layout, page);
  header_ = std::make_unique<Block>();
  EncodeHeader(header_->bytes, header);
  pieces_ = {header_->bytes,
             page.subspan(kPageHeaderBytes, layout.page_bytes() - kPageHeaderBytes)};
}

void ChunkBytes::PadWithZeros(const KvLayout& layout, std::span<const std::byte> page) {
  padded_.resize(layout.page_bytes() / sizeof(Block));
  const auto out = std::as_writable_bytes(std::span(padded_));
  for (int layer = 0; layer < layout.layers; ++layer) {
    std::memcpy(&out[layout.slab_offset(layer)], &page[layout.slab_offset(layer)],
                layout.slab_payload_bytes());
  }
}

}  // namespace kvcake
