#include "store/encoded_read.h"

#include <algorithm>

#include "store/chunk_format.h"

namespace kvcake {
namespace {

// Direct I/O reads whole blocks, and parts begin anywhere in them.
struct Range {
  uint64_t begin, end;  // in the file
};

Range BlocksOf(const ChunkHeader& header, const LayerRange& layers) {
  const uint64_t begin = header.layer_offset(layers.first),
                 end = header.layer_offset(layers.first + layers.count);
  return {begin / kDirectAlign * kDirectAlign,
          (end + kDirectAlign - 1) / kDirectAlign * kDirectAlign};
}

void PlanRange(DiskRead& read, const Range& range, const DiskTierOptions& options) {
  for (uint64_t at = range.begin; at < range.end; at += options.io_bytes_max) {
    const uint64_t bytes = std::min(options.io_bytes_max, range.end - at);
    read.pieces.push_back({at, read.request.landing.subspan(at, bytes)});
  }
}

// kCorrupt unless the header that has landed is that of the chunk that was asked for.
Result<ChunkHeader> LandedHeader(const DiskRead& read, const DiskTierOptions& options) {
  if (read.landed < kPageHeaderBytes) {
    return Fail(ErrorCode::kCorrupt, "it ended while it was being read");
  }
  ASSIGN_OR_RETURN(ChunkHeader header,
                   DecodeHeader(read.request.landing.first<kPageHeaderBytes>()));
  ChunkHeader expected;
  expected.root = options.root;
  expected.key = read.request.key;
  expected.parent = read.request.parent;
  expected.layout = options.layout;
  expected.codec = options.form.codec;
  expected.tables = options.form.tables;
  if (options.form.encrypted) expected.encryption.emplace();
  RETURN_IF_ERROR(CheckSameChunk(header, expected));
  // Its file may be of another size, but no slot is.
  if (header.file_bytes() <= options.form.FileBytesMax(options.layout)) return header;
  return Fail(ErrorCode::kCorrupt, "its layers have {} bytes, more than any chunk",
              header.file_bytes());
}

}  // namespace

void PlanEncoded(DiskRead& read, const DiskTierOptions& options) {
  const bool whole = !read.request.layers;
  read.may_end_early = whole;
  PlanRange(read, {0, whole ? options.form.FileBytesMax(options.layout) : kPageHeaderBytes},
            options);
}

bool PlanNextPieces(DiskRead& read, const DiskTierOptions& options) {
  const bool is_header = read.request.layers && read.landed == kPageHeaderBytes;
  if (!is_header || !read.status) return false;
  if (read.cancelled) {
    read.status = Fail(ErrorCode::kCancelled, "read cancelled");
    return false;
  }
  const auto header = LandedHeader(read, options);
  if (!header) {
    read.status = tl::unexpected(header.error());
    return false;
  }
  read.pieces.clear();
  PlanRange(read, BlocksOf(*header, *read.request.layers), options);
  return true;
}

Result<NumericPath> VerifyEncoded(const DiskRead& read, const DiskTierOptions& options) {
  ASSIGN_OR_RETURN(const ChunkHeader header, LandedHeader(read, options));
  if (!read.request.layers) {
    RETURN_IF_ERROR(CheckFileBytes(header, read.landed));
    RETURN_IF_ERROR(VerifySlabs(header, read.request.landing));
    return header.numeric_path;
  }
  for (int i = 0; i < read.request.layers->count; ++i) {
    const int layer = read.request.layers->first + i;
    RETURN_IF_ERROR(VerifySlab(
        header, layer,
        read.request.landing.subspan(header.layer_offset(layer), header.layer_bytes(layer))));
  }
  return header.numeric_path;
}

}  // namespace kvcake
