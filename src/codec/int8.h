// The codec `int8`: a byte for each number.
//
// Keys by channel: of each block of up to 128 tokens every channel of a head has its smallest
// number and a step of which a key is 0 to 255. Values by token: of each head every token has a
// step of which a value is -127 to 127. A step is a bf16, rounded up.
#pragma once

#include <memory>

#include "codec/codec.h"

namespace kvcake {

Result<std::unique_ptr<LayerCodec>> MakeInt8Codec(const CodecSpec& spec, CodecIsa isa);

}  // namespace kvcake
