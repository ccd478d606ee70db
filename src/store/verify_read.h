// Whether what a read delivered is the chunk that was asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "store/chunk_format.h"
#include "store/chunk_kind.h"
#include "store/tier.h"

namespace kvcake {

// kCorrupt, with what is wrong, unless it is the header of the chunk that was asked for, of no more
// bytes than any chunk of that kind has.
Result<ChunkHeader> DecodeHeaderFor(ConstHeaderBytes bytes, const ReadRequest& request,
                                    const ChunkKind& kind);

// kCorrupt, with what is wrong, unless `header` and the read's landing hold what it asked for: of
// encoded chunks where it lies in the file, which has `file_bytes`, where all of it was read.
Result<NumericPath> VerifyRead(ConstHeaderBytes header, const ReadRequest& request,
                               const ChunkKind& kind, uint64_t file_bytes);

}  // namespace kvcake
