#include "kv/chunk_key.h"

#include <bit>

#include "base/check.h"

namespace kvcake {
namespace {

void AppendLittleEndian(std::string& out, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(value >> shift));
}

}  // namespace

KvIdentity& KvIdentity::Add(std::string_view name, std::string_view value) {
  fields_.emplace_back(name, value);
  return *this;
}

ChunkKey KvIdentity::Root() const {
  std::string list = "kvcake root v1";
  for (const auto& [name, value] : fields_) {
    for (const std::string& text : {name, value}) {
      AppendLittleEndian(list, static_cast<uint32_t>(text.size()));
      list += text;
    }
  }
  return ChunkKey{Sha256().Update(list).Finish()};
}

ChunkKey SaltedRoot(const KvIdentity& identity, std::string_view salt) {
  return salt.empty() ? identity.Root() : KvIdentity(identity).Add("salt", salt).Root();
}

ChunkKey ExtendedKey(const ChunkKey& key, std::span<const std::byte> extra) {
  return {Sha256()
              .Update("kvcake extra v1")
              .Update(std::as_bytes(std::span(key.digest)))
              .Update(extra)
              .Finish()};
}

std::vector<ChunkKey> ChunkKeys(const ChunkKey& root, std::span<const int32_t> tokens,
                                int chunk_tokens) {
  CHECK(chunk_tokens > 0);
  std::vector<ChunkKey> keys;
  keys.reserve(tokens.size() / chunk_tokens);
  Sha256 sha;
  ChunkKey key = root;
  // The tokens as they lie in memory: a prompt of 2,000 is hashed between two steps of the engine.
  static_assert(std::endian::native == std::endian::little);
  for (; tokens.size() >= static_cast<size_t>(chunk_tokens);
       tokens = tokens.subspan(chunk_tokens)) {
    key.digest = sha.Update(std::as_bytes(std::span(key.digest)))
                     .Update(std::as_bytes(tokens.first(chunk_tokens)))
                     .Finish();
    keys.push_back(key);
  }
  return keys;
}

}  // namespace kvcake
