// A tier's load lane without a model.
#pragma once

#include <vector>

#include "kv/page_pool.h"
#include "store/tier.h"

namespace kvcake::bench {

// Reads the chunks of a prompt as fast as the tier allows, and publishes them. The pool has pages
// for all reads that the tier has in flight.
Status LoadChunks(Tier& tier, PagePool& pool, const ChunkKey& root,
                  const std::vector<ChunkKey>& keys);

}  // namespace kvcake::bench
