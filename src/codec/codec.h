// Codecs: a chunk as fewer bytes and back, a layer at a time.
//
// A codec is one row of one table, and nothing else in the program names one. It turns the payload
// of a slab ([K or V][kv_head][token][head_dim] of bf16, kv/kv_layout.h) into a part, whose length
// depends on the numbers, and back. docs/format.md has the bytes of each codec's parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "codec/codec_tables.h"
#include "kv/kv_layout.h"

namespace kvcake {

// A part's length is a multiple of this.
constexpr uint64_t kPartAlign = 64;

// Which slab of a prompt's cache it is.
struct SlabPlace {
  int layer = 0;
  int64_t position = 0;  // of the chunk's first token in its prompt
};

// A codec for the layers of chunks of one layout. Immutable, so any thread may call it.
class LayerCodec {
 public:
  virtual ~LayerCodec() = default;

  // The most bytes that a part takes, whatever the slab holds.
  virtual uint64_t part_bytes_max() const = 0;
  // Writes the part of a slab's payload, values of the layout, to the beginning of `part`, which
  // has part_bytes_max(), and returns its length. kUnsupported for numbers that the codec cannot
  // keep, such as infinities by a lossy one.
  virtual Result<uint64_t> Encode(const SlabPlace& place, std::span<const uint16_t> slab,
                                  std::span<std::byte> part) const = 0;
  // Reads a part of any bytes into the payload of a slab: kCorrupt unless Encode can have written
  // one of its length for this place. Touches nothing beyond either; what fails may have written
  // some of `slab`.
  virtual Status Decode(const SlabPlace& place, std::span<const std::byte> part,
                        std::span<uint16_t> slab) const = 0;
};

// Which instructions a codec uses; all give the same bytes and the same numbers.
enum class CodecIsa { kPortable, kAvx2, kAvx512 };
// What this CPU has, the fastest last.
std::vector<CodecIsa> CodecIsas();
const char* CodecIsaName(CodecIsa isa);

// What a codec is made from.
struct CodecSpec {
  KvLayout layout;
  // The model's, for a codec that has tables; read by `make` only.
  const CodecTables* tables = nullptr;
  uint32_t model = 0;  // TablesModel of the one whose chunks these are; 0: tables are believed
};

// KV caches of a model, from which tables are fitted: `chunks` chunks of the layout.
struct KvSample {
  KvLayout layout;
  std::vector<int64_t> positions;  // [chunks], of each chunk's first token in its prompt
  // How fast RoPE turns each pair of a head's channels, c and c + head_dim / 2, with the position:
  // radians a token, [head_dim / 2]. Empty: the model has no RoPE.
  std::vector<float> inverse_frequencies;
  // The payload of a slab; valid as long as the sample.
  std::function<std::span<const uint16_t>(size_t chunk, int layer)> slab;

  size_t chunks() const { return positions.size(); }
};

struct CodecRow {
  Codec codec;
  const char* name;  // as flags and reports have it
  bool lossy;        // what is decoded differs from what was encoded
  // kInvalidArgument where the tables are missing or another model's, kCorrupt where they are none
  // that `fit` makes. Chunks of raw are pages as they are, unless they are encrypted.
  Result<std::unique_ptr<LayerCodec>> (*make)(const CodecSpec& spec, CodecIsa isa);
  // The tables of each quality level, the default one first, from at least one chunk. Null for a
  // codec without tables.
  std::vector<CodecTables> (*fit)(const KvSample& sample);
};

// All of them, raw first.
std::span<const CodecRow> CodecRows();
// Null where there is none of that number.
const CodecRow* FindCodec(Codec codec);
// kInvalidArgument, naming those that there are.
Result<const CodecRow*> CodecNamed(std::string_view name);

// The codec of a row, by the fastest instructions that this CPU has.
Result<std::unique_ptr<LayerCodec>> MakeCodec(Codec codec, const CodecSpec& spec);

constexpr uint64_t RoundUpToPart(uint64_t bytes) {
  return (bytes + kPartAlign - 1) / kPartAlign * kPartAlign;
}

}  // namespace kvcake
