// The codec `cachegen`: few levels for each number, and as few bits as each level is rare.
//
// After CacheGen (arXiv 2310.07240, section 5.2) and its released code: each token of K or V has a
// step, of which its numbers are -m to m; m depends on the layer and on the quality level; an
// entropy coder writes them, with a distribution for each channel. As in the released code, and
// other than in the paper, tokens are coded by themselves and not as differences from an anchor.
// Other than in both, distributions are fitted once for a model and not sent with each chunk.
#pragma once

#include <memory>
#include <vector>

#include "codec/codec.h"

namespace kvcake {

Result<std::unique_ptr<LayerCodec>> MakeCacheGenCodec(const CodecSpec& spec, CodecIsa isa);
std::vector<CodecTables> FitCacheGen(const KvSample& sample);

}  // namespace kvcake
