// The identity of a chunk: a SHA-256 chain over the tokens of a prompt, rooted in everything that
// determines the numbers in its KV cache.
#pragma once

#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace kvcake {

struct ChunkKey {
  Digest digest{};

  auto operator<=>(const ChunkKey&) const = default;
  std::string Hex() const { return ToHex(digest); }
};

// What a KV cache depends on, as a list of (name, value). Two identities share chunks exactly when
// their lists are equal: a new dependency is added as a new name, and names never change meaning.
class KvIdentity {
 public:
  // Values are the canonical text of a number or name: the same on every host.
  KvIdentity& Add(std::string_view name, std::string_view value);
  KvIdentity& Add(std::string_view name, int64_t value) { return Add(name, std::to_string(value)); }

  // key_{-1}: the hash of the versioned, length-prefixed list.
  ChunkKey Root() const;
  const std::vector<std::pair<std::string, std::string>>& fields() const { return fields_; }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

// The root of chunks that only requests with the same salt share; "" is everybody's.
ChunkKey SaltedRoot(const KvIdentity& identity, std::string_view salt);

// What follows `key` depends on `extra` too: the parent to go on from. Not a chunk's key.
ChunkKey ExtendedKey(const ChunkKey& key, std::span<const std::byte> extra);

// key_i = SHA-256(key_{i-1} || tokens of chunk i as little-endian u32), for each full chunk.
std::vector<ChunkKey> ChunkKeys(const ChunkKey& root, std::span<const int32_t> tokens,
                                int chunk_tokens);

}  // namespace kvcake

template <>
struct std::hash<kvcake::ChunkKey> {
  size_t operator()(const kvcake::ChunkKey& key) const {
    size_t h;  // the key is a digest: any of its bytes are as good as a hash
    std::memcpy(&h, key.digest.data(), sizeof(h));
    return h;
  }
};
