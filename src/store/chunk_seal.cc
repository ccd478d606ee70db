#include "store/chunk_seal.h"

#include <array>
#include <cstring>

#include "base/check.h"

namespace kvcake {
namespace {

// The identity's number, as of a part; it has a cipher of its own.
constexpr uint32_t kIdentityPart = 0;

using IdentityBytes = decltype(ChunkEncryption::identity);

IdentityBytes Pack(const ChunkHeader& header) {
  IdentityBytes bytes;
  std::byte* at = bytes.data();
  for (const ChunkKey& key : {header.key, header.parent, header.root}) {
    std::memcpy(at, key.digest.data(), key.digest.size());
    at += key.digest.size();
  }
  return bytes;
}

ChunkIdentity Unpack(const IdentityBytes& bytes) {
  ChunkIdentity identity;
  const std::byte* at = bytes.data();
  for (ChunkKey* key : {&identity.key, &identity.parent, &identity.root}) {
    std::memcpy(key->digest.data(), at, key->digest.size());
    at += key->digest.size();
  }
  return identity;
}

// Decrypts all parts of the chunk that the identity names.
Status OpenParts(const StoreKey& key, const ChunkIdentity& identity, const ChunkHeader& header,
                 std::span<std::byte> file) {
  const PartOpener opener(key, identity.key, file.first<kPageHeaderBytes>(), header);
  for (int layer = 0; layer < header.layout.layers; ++layer) {
    RETURN_IF_ERROR(
        opener.Open(layer, file.subspan(header.layer_offset(layer), header.layer_bytes(layer))));
  }
  return {};
}

}  // namespace

Status SealChunk(const StoreKey& key, ChunkHeader& header, std::span<std::byte> file) {
  ChunkEncryption& encryption = header.encryption.emplace();
  CHECK(file.size() >= header.file_bytes());
  encryption.salt = NewFileSalt();
  const IdentityBytes identity = Pack(header);
  const FileCipher cipher = key.ChunkCipher(encryption.salt, header.key.digest);
  for (ChunkKey* named : {&header.key, &header.parent, &header.root}) *named = NameOf(key, *named);
  const auto bytes = file.first<kPageHeaderBytes>();
  EncodeHeader(bytes, header);  // what is authenticated
  const auto associated = bytes.first<kAssociatedBytes>();
  RETURN_IF_ERROR(key.HeaderCipher(encryption.salt)
                      .Seal(kIdentityPart, associated, identity, encryption.identity,
                            &encryption.identity_tag));
  uint64_t at = kPageHeaderBytes;
  for (size_t layer = 0; layer < header.parts.size(); ++layer) {
    ChunkPart& part = header.parts[layer];
    const auto sealed = file.subspan(at, part.bytes);
    RETURN_IF_ERROR(
        cipher.Seal(static_cast<uint32_t>(layer), associated, sealed, sealed, &part.tag));
    part.checksum = Xxh3_64(sealed);
    at += part.bytes;
  }
  EncodeHeader(bytes, header);
  return {};
}

Result<ChunkIdentity> OpenIdentity(const StoreKey& key, ConstHeaderBytes bytes,
                                   const ChunkHeader& header) {
  if (!header.encryption) return Fail(ErrorCode::kCorrupt, "it is not encrypted");
  const ChunkEncryption& encryption = *header.encryption;
  IdentityBytes plain;
  RETURN_IF_ERROR(key.HeaderCipher(encryption.salt)
                      .Open(kIdentityPart, bytes.first<kAssociatedBytes>(), encryption.identity,
                            encryption.identity_tag, plain));
  return Unpack(plain);
}

PartOpener::PartOpener(const StoreKey& key, const ChunkKey& chunk, ConstHeaderBytes bytes,
                       const ChunkHeader& header)
    : bytes_(bytes),
      header_(header),
      cipher_(key.ChunkCipher(header.encryption.value().salt, chunk.digest)) {}

Status PartOpener::Open(int layer, std::span<std::byte> part) const {
  return cipher_.Open(static_cast<uint32_t>(layer), bytes_.first<kAssociatedBytes>(), part,
                      header_.parts[layer].tag, part);
}

Result<ChunkIdentity> OpenChunk(const StoreKey& key, const ChunkHeader& header,
                                std::span<std::byte> file) {
  ASSIGN_OR_RETURN(const ChunkIdentity identity,
                   OpenIdentity(key, file.first<kPageHeaderBytes>(), header));
  RETURN_IF_ERROR(OpenParts(key, identity, header, file));
  return identity;
}

Result<std::optional<ChunkIdentity>> OpenChunkIfBy(const StoreKey& key, const ChunkHeader& header,
                                                   std::span<std::byte> file) {
  const auto identity = OpenIdentity(key, file.first<kPageHeaderBytes>(), header);
  if (!identity && identity.error().code == ErrorCode::kCorrupt) return std::nullopt;
  if (!identity) return tl::unexpected(identity.error());
  RETURN_IF_ERROR(OpenParts(key, *identity, header, file));
  return *identity;
}

}  // namespace kvcake
