// The bytes of a chunk file: a 4 KiB header, then one slab per layer exactly as in a page
// (kv/kv_layout.h). docs/format.md specifies it byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/chunk_key.h"
#include "kv/kv_layout.h"

namespace kvcake {

constexpr uint32_t kChunkVersion = 1;
// The slab checksums fill what the header has left.
constexpr int kChunkLayersMax = 487;

struct ChunkHeader {
  ChunkKey root;
  ChunkKey key;
  ChunkKey parent;
  KvLayout layout;
  Codec codec = Codec::kRaw;
  NumericPath numeric_path = NumericPath::kUnknown;
  std::vector<uint64_t> slab_checksums;  // XXH3-64 of each layer's slab, padding included

  bool operator==(const ChunkHeader&) const = default;
};

using HeaderBytes = std::span<std::byte, kPageHeaderBytes>;
using ConstHeaderBytes = std::span<const std::byte, kPageHeaderBytes>;

// kUnsupported when the layout has more layers than the header has room for.
Status CheckStorable(const KvLayout& layout);
// The header must have one checksum per layer.
void EncodeHeader(HeaderBytes out, const ChunkHeader& header);
// kCorrupt, with the field at fault, unless every byte is one that EncodeHeader writes. A numeric
// path of a later version reads as kUnknown.
Result<ChunkHeader> DecodeHeader(ConstHeaderBytes bytes);
// kCorrupt, with the first field that differs, unless both describe the same chunk: all but numeric
// path and checksums are compared.
Status CheckSameChunk(const ChunkHeader& header, const ChunkHeader& expected);

// The checksums of a page or file of `layout`.
std::vector<uint64_t> SlabChecksums(const KvLayout& layout, std::span<const std::byte> page);
// kCorrupt, with the layer, unless the slab is the one that the header names.
Status VerifySlab(const ChunkHeader& header, int layer, std::span<const std::byte> slab);
// The same for all slabs of a page or file.
Status VerifySlabs(const ChunkHeader& header, std::span<const std::byte> page);

// kCorrupt unless a file of the header's chunk has so many bytes.
Status CheckFileBytes(const ChunkHeader& header, uint64_t bytes);
// A whole chunk file, from nothing but its bytes: kCorrupt, with what is wrong, unless it is as
// long as its header says and every checksum holds. What chunk it is, is for the caller to compare.
Result<ChunkHeader> DecodeChunk(std::span<const std::byte> file);

}  // namespace kvcake
