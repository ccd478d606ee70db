#include "bench/zstd.h"

#include <dlfcn.h>

namespace kvcake::bench {

const Zstd* Zstd::Load() {
  static const Zstd* const loaded = []() -> const Zstd* {
    void* library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    const auto bound = reinterpret_cast<Bound>(dlsym(library, "ZSTD_compressBound"));
    const auto pack = reinterpret_cast<Pack>(dlsym(library, "ZSTD_compress"));
    const auto unpack = reinterpret_cast<Unpack>(dlsym(library, "ZSTD_decompress"));
    const auto is_error = reinterpret_cast<IsError>(dlsym(library, "ZSTD_isError"));
    if (!bound || !pack || !unpack || !is_error) return nullptr;
    return new Zstd(bound, pack, unpack, is_error);  // for as long as the process
  }();
  return loaded;
}

size_t Zstd::Compress(std::span<const std::byte> from, std::span<std::byte> to, int level) const {
  const size_t bytes = pack_(to.data(), to.size(), from.data(), from.size(), level);
  return is_error_(bytes) ? 0 : bytes;
}

size_t Zstd::Decompress(std::span<const std::byte> from, std::span<std::byte> to) const {
  const size_t bytes = unpack_(to.data(), to.size(), from.data(), from.size());
  return is_error_(bytes) ? 0 : bytes;
}

}  // namespace kvcake::bench
