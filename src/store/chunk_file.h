// Whole chunk files, read and checked by a thread that waits for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "io/file_system.h"
#include "store/chunk_format.h"

namespace kvcake {

// One thread's, for one file after another. Reads by direct I/O where that is possible, and writes
// nothing to find out.
class ChunkFileReader {
 public:
  explicit ChunkFileReader(FileSystem& fs) : fs_(fs) {}

  // What the file says it is, when every byte of it is in order: else kCorrupt with what is wrong,
  // or what OpenRead and ReadAt fail with. Memory is taken only for what begins as a chunk of its
  // size does.
  Result<ChunkHeader> Read(const std::string& path);
  // The file that was read last, when that went well: aligned for direct I/O, and the caller's to
  // change until the next.
  std::span<std::byte> file() { return {data_.get(), file_bytes_}; }

 private:
  Result<ChunkHeader> ReadFrom(const std::string& path, bool direct);
  Status CheckSize(File& file, uint64_t bytes);
  Status ReadFully(File& file, std::span<std::byte> into, uint64_t bytes);
  // At least `bytes`, aligned for direct reads; may be empty where there is no memory.
  std::span<std::byte> Buffer(uint64_t bytes);

  struct Free {
    void operator()(std::byte* p) const { free(p); }
  };

  FileSystem& fs_;
  bool direct_ = true;
  std::unique_ptr<std::byte[], Free> data_;
  uint64_t size_ = 0;
  uint64_t file_bytes_ = 0;
};

}  // namespace kvcake
