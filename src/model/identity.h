// What the numbers of a model's KV cache depend on.
#pragma once

#include "kv/chunk_key.h"
#include "kv/kv_layout.h"
#include "model/config.h"
#include "ops/packed_matrix.h"

namespace kvcake {

// Raised with every mend of a kernel that changes what it computes: chunks of before are not found
// any more. 0 adds nothing, so that stores of the first revision stay readable.
inline constexpr int kArithmeticRevision = 0;

KvIdentity MakeIdentity(const ModelConfig& config, const KvLayout& layout,
                        const Digest& weights_digest, WeightFormat weights,
                        int arithmetic = kArithmeticRevision);

}  // namespace kvcake
