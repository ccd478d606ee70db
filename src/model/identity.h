// What the numbers of a model's KV cache depend on.
#pragma once

#include <string_view>

#include "kv/chunk_key.h"
#include "kv/kv_layout.h"
#include "model/config.h"
#include "ops/packed_matrix.h"

namespace kvcake {

// Raised with every mend of a kernel that changes what it computes: chunks of before are not found
// any more. 0 adds nothing, so that stores of the first revision stay readable.
inline constexpr int kArithmeticRevision = 0;

// `lossy_lineage`: the lossy codecs that a run may load chunks by, and their tables, as text; empty
// where it loads none. What such a run computes on top of decoded numbers is never another's.
KvIdentity MakeIdentity(const ModelConfig& config, const KvLayout& layout,
                        const Digest& weights_digest, WeightFormat weights,
                        int arithmetic = kArithmeticRevision, std::string_view lossy_lineage = {});

}  // namespace kvcake
