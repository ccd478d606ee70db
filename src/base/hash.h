// Hashing: SHA-256 for identity (keys), XXH3 for integrity (checksums).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kvcake {

using Digest = std::array<uint8_t, 32>;

// Incremental SHA-256. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& Update(std::span<const std::byte> bytes);
  Sha256& Update(std::string_view text) { return Update(std::as_bytes(std::span(text))); }
  // The digest of everything so far; the object may then be used for another message.
  Digest Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// HMAC-SHA256, whose key may be of any length.
Digest HmacSha256(std::string_view key, std::string_view message);

uint64_t Xxh3_64(std::span<const std::byte> bytes);

// 128 bits, most significant byte first, of a message that comes in pieces. Not thread-safe.
class Xxh3_128Stream {
 public:
  Xxh3_128Stream();
  ~Xxh3_128Stream();
  Xxh3_128Stream(const Xxh3_128Stream&) = delete;
  Xxh3_128Stream& operator=(const Xxh3_128Stream&) = delete;

  void Update(std::span<const std::byte> bytes);
  // The hash of everything so far; the object may then be used for another message.
  std::array<uint8_t, 16> Finish();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// Lower-case hexadecimal.
std::string ToHex(std::span<const uint8_t> bytes);

}  // namespace kvcake
