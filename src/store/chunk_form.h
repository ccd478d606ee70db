// In which form a store keeps its chunks: as pages are, or as a codec writes them.
#pragma once

#include <cstdint>
#include <string>

#include "base/hash.h"
#include "kv/chunk_key.h"
#include "kv/kv_layout.h"

namespace kvcake {

struct ChunkForm {
  Codec codec = Codec::kRaw;
  Digest tables{};              // TablesDigest of the codec's; zeros where it has none
  uint64_t part_bytes_max = 0;  // LayerCodec::part_bytes_max; 0: raw
  bool encrypted = false;

  // Whether files are pages as they are in memory.
  bool raw() const { return codec == Codec::kRaw && !encrypted; }
  // The most bytes of a file; of raw chunks the bytes of each.
  uint64_t FileBytesMax(const KvLayout& layout) const;
  // Whether a file of so many bytes can be a chunk.
  bool CanHave(const KvLayout& layout, uint64_t bytes) const;
  // For messages: "8192", or "a multiple of 4096 from 8192 to 16384".
  std::string FileBytesText(const KvLayout& layout) const;
};

// The root of chunks of this form, which files have in their headers and lie under, by its name
// where they are encrypted: the model's own of codec raw. Chunks of another codec, or of other
// tables, are never taken for each other.
ChunkKey FormRoot(const ChunkKey& root, const ChunkForm& form);

}  // namespace kvcake
