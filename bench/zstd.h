// Zstandard, to compare codecs with. Loaded when it is asked for: nothing else of kvcake needs it.
#pragma once

#include <cstddef>
#include <span>

namespace kvcake::bench {

class Zstd {
 public:
  // Null where libzstd.so.1 is not installed.
  static const Zstd* Load();

  size_t BytesMax(size_t bytes) const { return bound_(bytes); }
  // The bytes written; 0 where it fails.
  size_t Compress(std::span<const std::byte> from, std::span<std::byte> to, int level) const;
  size_t Decompress(std::span<const std::byte> from, std::span<std::byte> to) const;

 private:
  using Bound = size_t (*)(size_t);
  using Pack = size_t (*)(void* to, size_t to_bytes, const void* from, size_t bytes, int level);
  using Unpack = size_t (*)(void* to, size_t to_bytes, const void* from, size_t bytes);
  using IsError = unsigned (*)(size_t);
  Zstd(Bound bound, Pack pack, Unpack unpack, IsError is_error)
      : bound_(bound), pack_(pack), unpack_(unpack), is_error_(is_error) {}

  const Bound bound_;
  const Pack pack_;
  const Unpack unpack_;
  const IsError is_error_;
};

}  // namespace kvcake::bench
