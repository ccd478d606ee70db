// The codec `kvquant3`: 3 bits for each number, of which 1% are kept beside them in 16.
//
// After KVQuant (arXiv 2401.18079): keys before RoPE by channel, with means and spreads fitted for
// the model (sections 3.1, 3.2); values by token (3.1); 8 centroids for the keys and 8 for the
// values of each layer (3.3); outliers apart (3.4); the first tokens of a prompt as they are (3.5).
// Centroids are fitted by the squared error that they make in the cache: kvcake computes no
// gradients, by which the paper weighs errors.
#pragma once

#include <memory>
#include <vector>

#include "codec/codec.h"

namespace kvcake {

Result<std::unique_ptr<LayerCodec>> MakeKvQuant3Codec(const CodecSpec& spec, CodecIsa isa);
std::vector<CodecTables> FitKvQuant3(const KvSample& sample);

}  // namespace kvcake
