#include "store/encoded_read.h"

#include <algorithm>

#include "store/chunk_format.h"
#include "store/verify_read.h"

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
  const auto header = DecodeHeaderFor(read.request.landing.first<kPageHeaderBytes>(), read.request,
                                      ChunkKind::Of(options));
  if (!header) {
    read.status = tl::unexpected(header.error());
    return false;
  }
  read.pieces.clear();
  PlanRange(read, BlocksOf(*header, *read.request.layers), options);
  return true;
}

}  // namespace kvcake
