#include "store/disk_read.h"

#include <algorithm>
#include <utility>

#include "store/encoded_read.h"
#include "store/verify_read.h"

namespace kvcake {

DiskRead::DiskRead(ReadRequest read_request, const DiskTierOptions& options)
    : request(std::move(read_request)) {
  if (!options.form.raw()) {
    PlanEncoded(*this, options);
    return;
  }
  uint64_t offset = 0;
  if (request.layers) {
    header = std::make_unique<HeaderBlock>();
    pieces.push_back({0, header->bytes});
    offset = options.layout.slab_offset(request.layers->first);
  }
  const auto landing = request.landing.first(ReadBytes(options.layout, request));
  for (uint64_t at = 0; at < landing.size(); at += options.io_bytes_max) {
    const uint64_t bytes = std::min<uint64_t>(options.io_bytes_max, landing.size() - at);
    pieces.push_back({offset + at, landing.subspan(at, bytes)});
  }
}

// The header of a read of some layers is a piece of its own.
uint64_t PiecesMax(const DiskTierOptions& options) {
  return (options.form.FileBytesMax(options.layout) + options.io_bytes_max - 1) /
             options.io_bytes_max +
         1;
}

Result<NumericPath> VerifyLanded(const DiskRead& read, const DiskTierOptions& options) {
  if (!options.form.raw() && read.landed < kPageHeaderBytes) {
    return Fail(ErrorCode::kCorrupt, "it ended while it was being read");
  }
  const auto header = read.header
                          ? ConstHeaderBytes(read.header->bytes)
                          : ConstHeaderBytes(read.request.landing.first<kPageHeaderBytes>());
  // Every piece of a raw chunk comes whole.
  const uint64_t bytes = options.form.raw() ? options.layout.page_bytes() : read.landed;
  return VerifyRead(header, read.request, ChunkKind::Of(options), bytes);
}

}  // namespace kvcake
