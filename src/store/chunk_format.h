// The bytes of a chunk file: a 4 KiB header, then one slab per layer exactly as in a page
// (kv/kv_layout.h), or, of an encoded chunk, one part per layer as a codec writes them.
// docs/format.md specifies both byte by byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "codec/store_key.h"
#include "kv/chunk_key.h"
#include "kv/kv_layout.h"

namespace kvcake {

constexpr uint32_t kChunkVersion = 1;         // of raw chunks
constexpr uint32_t kEncodedChunkVersion = 2;  // of all others
// What is kept of each layer fills what the header has left.
constexpr int kChunkLayersMax = 487;
constexpr int kEncodedLayersMax = 136;
constexpr int kEncryptedLayersMax = 132;

// One layer of an encoded chunk.
struct ChunkPart {
  uint64_t bytes = 0;     // a multiple of kPartAlign, not 0
  uint64_t checksum = 0;  // XXH3-64 of them, as they are in the file
  PartTag tag{};          // of an encrypted chunk's

  bool operator==(const ChunkPart&) const = default;
};

// What an encrypted chunk has besides (store/chunk_seal.h).
struct ChunkEncryption {
  FileSalt salt{};
  std::array<std::byte, 3 * sizeof(Digest)> identity{};  // the chunk's key, parent and root, sealed
  PartTag identity_tag{};

  bool operator==(const ChunkEncryption&) const = default;
};

// Root, key and parent of an encrypted chunk are the names that the store's key gives them.
struct ChunkHeader {
  ChunkKey root;
  ChunkKey key;
  ChunkKey parent;
  KvLayout layout;
  Codec codec = Codec::kRaw;
  NumericPath numeric_path = NumericPath::kUnknown;
  // XXH3-64 of each layer's slab, padding included; empty of an encoded chunk.
  std::vector<uint64_t> slab_checksums;

  // What only an encoded chunk has:
  int64_t position = 0;          // of its first token in its prompt
  Digest tables{};               // TablesDigest of the codec's; zeros where it has none
  std::vector<ChunkPart> parts;  // one of each layer; they follow each other without a gap
  std::optional<ChunkEncryption> encryption;

  // Whether it has parts: it is encrypted, or of another codec than raw.
  bool encoded() const { return codec != Codec::kRaw || encryption; }
  // The layer's slab or part in the file.
  uint64_t layer_offset(int layer) const;
  uint64_t layer_bytes(int layer) const {
    return encoded() ? parts[layer].bytes : layout.slab_bytes();
  }
  // A multiple of 4096: after the last part there are zeros.
  uint64_t file_bytes() const;

  bool operator==(const ChunkHeader&) const = default;
};

using HeaderBytes = std::span<std::byte, kPageHeaderBytes>;
using ConstHeaderBytes = std::span<const std::byte, kPageHeaderBytes>;

// How many bytes of an encrypted chunk's header each of its parts is authenticated with: all that
// EncodeHeader knows before they are encrypted.
constexpr size_t kAssociatedBytes = 256;

// What claims to be larger is no chunk: a file of a stranger's costs so much memory at most.
constexpr uint64_t kChunkBytesMax = 1ull << 32;

// kUnsupported when the layout has more layers than the header has room for, or larger pages than
// kChunkBytesMax.
Status CheckStorable(const KvLayout& layout, Codec codec = Codec::kRaw, bool encrypted = false);
// The header must have one checksum, or one part, per layer.
void EncodeHeader(HeaderBytes out, const ChunkHeader& header);
// kCorrupt, with the field at fault, unless every byte is one that EncodeHeader writes. A numeric
// path of a later version reads as kUnknown.
Result<ChunkHeader> DecodeHeader(ConstHeaderBytes bytes);
// kCorrupt, with the first field that differs, unless both describe the same chunk in the same
// form: all but numeric path, position, sizes and checksums are compared.
Status CheckSameChunk(const ChunkHeader& header, const ChunkHeader& expected);

// The checksums of a page or file of `layout`.
std::vector<uint64_t> SlabChecksums(const KvLayout& layout, std::span<const std::byte> page);
// kCorrupt, with the layer, unless the slab or part is the one that the header names.
Status VerifySlab(const ChunkHeader& header, int layer, std::span<const std::byte> slab);
// The same for all slabs of a page or file, or all that follows the header of an encoded file.
Status VerifySlabs(const ChunkHeader& header, std::span<const std::byte> page);

// kCorrupt unless a file of the header's chunk has so many bytes.
Status CheckFileBytes(const ChunkHeader& header, uint64_t bytes);
// A whole chunk file, from nothing but its bytes: kCorrupt, with what is wrong, unless it is as
// long as its header says and every checksum holds. What chunk it is, is for the caller to compare.
Result<ChunkHeader> DecodeChunk(std::span<const std::byte> file);

}  // namespace kvcake
