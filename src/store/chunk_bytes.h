// The bytes of a chunk's file, of what is put into a tier that keeps files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "io/file_system.h"
#include "store/chunk_kind.h"
#include "store/tier.h"

namespace kvcake {

// What a raw page lacks is made here: its header, and zeros where its slabs end, as what lies there
// may be of other prompts. An encoded chunk is a whole file already. Memory that is made is aligned
// for direct I/O.
class ChunkBytes {
 public:
  // CHECKs that what is put is a page of that kind, or such a chunk's file. Its memory outlives
  // this.
  ChunkBytes(const ChunkWrite& chunk, const ChunkKind& kind);

  // One after another they are the file.
  std::span<const std::span<const std::byte>> pieces() const { return pieces_; }
  uint64_t bytes() const;

 private:
  struct alignas(kDirectAlign) Block {
    std::array<std::byte, kDirectAlign> bytes;
  };
  static_assert(sizeof(Block) == kPageHeaderBytes && kSlabAlign % sizeof(Block) == 0);

  void MakeRaw(const ChunkWrite& chunk, const ChunkKind& kind);
  void PadWithZeros(const KvLayout& layout, std::span<const std::byte> page);

  // A block of its own: the page is published, and may be read while it is written out.
  std::unique_ptr<Block> header_;
  std::vector<Block> padded_;
  std::vector<std::span<const std::byte>> pieces_;
};

}  // namespace kvcake
