// Whether what a read delivered is the chunk that was asked for.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "store/chunk_format.h"
#include "store/tier.h"

namespace kvcake {

// kCorrupt, with what is wrong, unless `header` and the read's landing hold what it asked for of a
// chunk of that root and layout.
Result<NumericPath> VerifyRead(ConstHeaderBytes header, const ReadRequest& request,
                               const ChunkKey& root, const KvLayout& layout);

}  // namespace kvcake
