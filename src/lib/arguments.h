// Arguments of the C API as its callers hand them over, checked: nothing that is out of range goes
// further.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/status.h"
#include "lib/cache.h"
#include "lib/kvcake.h"

namespace kvcake {

inline constexpr int kPromptTokensMax = 1 << 30;

// Structures begin with the size that the caller was compiled with. One that is newer than the
// library is as good as long as what the library does not know is zero.
template <typename T>
Result<T> ReadStruct(const T* given, const char* name) {
  if (given == nullptr) return Fail(ErrorCode::kInvalidArgument, "{} is NULL", name);
  const size_t size = given->struct_size;
  if (size < sizeof(T) || size % alignof(T) != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "struct_size of {} is {}: set it to its sizeof, {} at least", name, size,
                sizeof(T));
  }
  const auto* const bytes = reinterpret_cast<const std::byte*>(given);
  constexpr size_t kSizeMax = 1 << 16;
  if (size > kSizeMax || std::any_of(bytes + sizeof(T), bytes + size,
                                     [](std::byte byte) { return byte != std::byte{0}; })) {
    return Fail(ErrorCode::kUnsupported,
                "{} of {} bytes has fields that this libkvcake does not know: it is older than the "
                "header that the caller was compiled with",
                name, size);
  }
  T read;
  std::memcpy(&read, given, sizeof(T));
  return read;
}

// Element i of an array, where those before it have been read. They lie as the caller, for whom
// they may be larger, was compiled: all are as large as the first.
template <typename T>
Result<T> ReadElement(const T* first, size_t i, const std::string& name) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(first);
  const auto* const given = reinterpret_cast<const T*>(bytes + i * first->struct_size);
  if (given->struct_size == first->struct_size) return ReadStruct(given, name.c_str());
  return Fail(ErrorCode::kInvalidArgument,
              "struct_size of {} is {}, and {} of the first: set it to its sizeof", name,
              given->struct_size, first->struct_size);
}

// Where a structure is to be written to: kInvalidArgument unless it has room for all of it.
template <typename T>
Status CheckOut(const T* out, const char* name) {
  if (out == nullptr) return Fail(ErrorCode::kInvalidArgument, "{} is NULL", name);
  if (out->struct_size >= sizeof(T)) return {};
  return Fail(ErrorCode::kInvalidArgument,
              "struct_size of {} is {}: set it to its sizeof, {} at least", name, out->struct_size,
              sizeof(T));
}

// Keeps the size that the caller gave.
template <typename T>
void WriteStruct(T value, T* out) {
  value.struct_size = out->struct_size;
  std::memcpy(out, &value, sizeof(T));
}

ChunkKey KeyOf(const kvcake_key& key);
kvcake_key KeyOf(const ChunkKey& key);
Result<std::vector<ChunkKey>> ReadKeys(const kvcake_key* keys, size_t count);
// Finite, from 0 to a thousand years.
Result<Seconds> ReadSeconds(double seconds, const char* name);

Result<CacheOptions> ReadOptions(const kvcake_options* given);
Result<CacheRequest> ReadBegin(const kvcake_request* given, int chunk_tokens);
Result<CacheWrite> ReadWrite(const kvcake_write* given, uint64_t slab_bytes);
Result<std::vector<AsyncWrite>> ReadAsyncWrites(const kvcake_async_write* given, size_t count,
                                                int layers, uint64_t slab_bytes);

}  // namespace kvcake
