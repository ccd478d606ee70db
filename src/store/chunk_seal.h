// Encryption of whole chunk files, and of the parts of one that was read. Of each file the parts
// have a key of their own, by HKDF of the store's key, a random salt in the file, and the chunk's
// key, in which its tenant's salt is; the first kAssociatedBytes of the header are authenticated
// with each of them. What the file is about is sealed, too, by what the store's key and the salt
// give: so that a store can get another key.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "base/status.h"
#include "codec/store_key.h"
#include "store/chunk_format.h"

namespace kvcake {

// What the names in an encrypted chunk's header stand for.
struct ChunkIdentity {
  ChunkKey key, parent, root;

  bool operator==(const ChunkIdentity&) const = default;
};

inline ChunkKey NameOf(const StoreKey& key, const ChunkKey& chunk) {
  return {key.NameOf(chunk.digest)};
}

// Encrypts the parts of a file where they lie, behind the room of its header, which it writes.
// `header` has all but checksums and encryption, with the chunk's own key, parent and root, which
// become names. kResourceExhausted where libcrypto has no memory; the file is worth nothing then.
Status SealChunk(const StoreKey& key, ChunkHeader& header, std::span<std::byte> file);

// kCorrupt unless the header is one that SealChunk wrote by this key.
Result<ChunkIdentity> OpenIdentity(const StoreKey& key, ConstHeaderBytes bytes,
                                   const ChunkHeader& header);

// Decrypts all parts of a whole file, as DecodeChunk has read it, where they lie. kCorrupt unless
// it is what SealChunk wrote by this key, under names that it gives.
Result<ChunkIdentity> OpenChunk(const StoreKey& key, const ChunkHeader& header,
                                std::span<std::byte> file);

// The same; nothing, and the file as it was, where another key wrote the header or none did.
Result<std::optional<ChunkIdentity>> OpenChunkIfBy(const StoreKey& key, const ChunkHeader& header,
                                                   std::span<std::byte> file);

// Decrypts the parts of one file. `bytes` and `header` are its header, twice, and outlive it.
class PartOpener {
 public:
  // `chunk` is the chunk's own key.
  PartOpener(const StoreKey& key, const ChunkKey& chunk, ConstHeaderBytes bytes,
             const ChunkHeader& header);

  // Decrypts a layer's part where it lies. kCorrupt unless it is what SealChunk wrote.
  Status Open(int layer, std::span<std::byte> part) const;

 private:
  const ConstHeaderBytes bytes_;
  const ChunkHeader& header_;
  const FileCipher cipher_;
};

}  // namespace kvcake
