// What the numbers of a model's KV cache depend on.
#pragma once

#include "kv/chunk_key.h"
#include "kv/kv_layout.h"
#include "model/config.h"
#include "ops/packed_matrix.h"

namespace kvcake {

KvIdentity MakeIdentity(const ModelConfig& config, const KvLayout& layout,
                        const Digest& weights_digest, WeightFormat weights);

}  // namespace kvcake
