// The codec of what is not encoded, for chunks that have parts all the same, as they are encrypted.
#pragma once

#include <memory>

#include "codec/codec.h"

namespace kvcake {

// A part is the slab's payload, then zeros.
Result<std::unique_ptr<LayerCodec>> MakeRawCodec(const CodecSpec& spec, CodecIsa isa);

}  // namespace kvcake
