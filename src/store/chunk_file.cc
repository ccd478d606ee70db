#include "store/chunk_file.h"

#include <algorithm>

#include "base/large_pages.h"

namespace kvcake {
namespace {

constexpr uint64_t kIoBytes = 4 << 20;

}  // namespace

Result<ChunkHeader> ChunkFileReader::Read(const std::string& path) {
  auto header = ReadFrom(path, direct_);
  if (header || !direct_ || header.error().code != ErrorCode::kIo) return header;
  // Some file systems open a file for direct I/O and refuse to read it.
  auto cached = ReadFrom(path, /*direct=*/false);
  if (cached) {
    WarnNoDirectIo(path);
    direct_ = false;
  }
  return cached;
}

Result<ChunkHeader> ChunkFileReader::ReadFrom(const std::string& path, bool direct) {
  ASSIGN_OR_RETURN(const auto file, fs_.OpenRead(path, direct));
  ASSIGN_OR_RETURN(const FileInfo info, file->Info());
  RETURN_IF_ERROR(CheckSize(*file, info.bytes));
  const std::span<std::byte> buffer = Buffer(info.bytes);
  if (buffer.size() < info.bytes) {
    return Fail(ErrorCode::kResourceExhausted, "no memory for {} bytes", info.bytes);
  }
  RETURN_IF_ERROR(ReadFully(*file, buffer, info.bytes));
  file_bytes_ = info.bytes;
  return DecodeChunk(buffer.first(info.bytes));
}

// What needs more memory than there is must have a header that says so.
Status ChunkFileReader::CheckSize(File& file, uint64_t bytes) {
  const std::span<std::byte> block = Buffer(kPageHeaderBytes);
  if (bytes <= block.size()) return {};
  if (bytes > kChunkBytesMax) {
    return Fail(ErrorCode::kCorrupt, "it has {} bytes, more than any chunk", bytes);
  }
  if (block.empty()) return Fail(ErrorCode::kResourceExhausted, "no memory for a header");
  const auto header = block.first<kPageHeaderBytes>();
  RETURN_IF_ERROR(ReadFully(file, header, header.size()));
  ASSIGN_OR_RETURN(const ChunkHeader decoded, DecodeHeader(header));
  return CheckFileBytes(decoded, bytes);
}

Status ChunkFileReader::ReadFully(File& file, std::span<std::byte> into, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    const auto piece = into.subspan(done, std::min(kIoBytes, into.size() - done));
    ASSIGN_OR_RETURN(const size_t n, file.ReadAt(piece, done));
    if (n == 0) return Fail(ErrorCode::kCorrupt, "it ended while it was being read");
    done += n;
  }
  return {};
}

std::span<std::byte> ChunkFileReader::Buffer(uint64_t bytes) {
  const uint64_t size = RoundUpToLargePages(std::max<uint64_t>(bytes, 1));
  if (size > size_) {
    data_.reset(AllocateLargePages(size));
    size_ = data_ ? size : 0;
  }
  return {data_.get(), size_};
}

}  // namespace kvcake
