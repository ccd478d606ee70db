// What encrypts a store: a secret, from which the names and the keys of its files are derived.
//
// Files are encrypted by AES-256-GCM, a part at a time, each file under a key of its own:
// HKDF-SHA256 of the secret, a random salt that the file holds, and what the file is about. Who has
// no secret learns how many chunks there are, their sizes and times, and the model's shape; and can
// take files away, but neither read nor change one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/status.h"

namespace kvcake {

using FileSalt = std::array<uint8_t, 32>;
using PartTag = std::array<uint8_t, 16>;

// From libcrypto's generator.
FileSalt NewFileSalt();

// Encrypts the parts of one file. Immutable, so any thread may call it.
class FileCipher {
 public:
  FileCipher(const FileCipher&) = default;
  ~FileCipher();  // wipes the key

  // A part's number is its nonce: no number may be sealed twice with the same salt.
  // `header` is what is authenticated with it and not encrypted. `sealed` is as long as `plain` and
  // may be the same memory. kResourceExhausted where libcrypto has no memory.
  Status Seal(uint32_t part, std::span<const std::byte> header, std::span<const std::byte> plain,
              std::span<std::byte> sealed, PartTag* tag) const;
  // kCorrupt unless these are Seal's bytes, tag and header for that part; `plain` then holds
  // nothing to be used.
  Status Open(uint32_t part, std::span<const std::byte> header, std::span<const std::byte> sealed,
              const PartTag& tag, std::span<std::byte> plain) const;

 private:
  friend class StoreKey;
  explicit FileCipher(const Digest& key) : key_(key) {}

  Digest key_;
};

class StoreKey {
 public:
  static constexpr size_t kBytesMin = 32, kBytesMax = 4096;

  StoreKey(const StoreKey&) = default;
  ~StoreKey();  // wipes both keys

  // kInvalidArgument unless it has kBytesMin to kBytesMax bytes; `name` says where it is from.
  static Result<StoreKey> Of(std::string_view secret, const std::string& name);
  // From the file, without white space at its end. A file that others than its owner may use is
  // refused. `option` is what named it, for messages.
  static Result<StoreKey> Load(const std::string& file, std::string_view option);

  // What stands for a key or a root where anybody can see it.
  Digest NameOf(const Digest& digest) const;
  // What encrypts the part of a file that tells what it is about, and what does the rest.
  FileCipher HeaderCipher(const FileSalt& salt) const;
  FileCipher ChunkCipher(const FileSalt& salt, const Digest& chunk_key) const;

 private:
  StoreKey() = default;

  Digest names_, files_;  // keys of their own, derived from the secret
};

}  // namespace kvcake
