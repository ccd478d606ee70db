// The codec `lossless`: sign and mantissa of a bf16 as they are, exponents by a small table.
//
// Exponents of a head's keys, or of its values, are few. A block, which is one head's K or V, has a
// table of the commonest and writes each exponent as its place there in 1 to 4 bits; the last place
// is an escape, for which the exponent itself follows in a list. The width that takes the fewest
// bytes is chosen for each block; width 0 has no table and escapes everything.
#pragma once

#include <memory>

#include "codec/codec.h"

namespace kvcake {

Result<std::unique_ptr<LayerCodec>> MakeLosslessCodec(const CodecSpec& spec, CodecIsa isa);

}  // namespace kvcake
