// Any bytes as a part, of each codec and of any layout: refused, or the same numbers by every
// instruction set, which a lossless codec keeps when it encodes them again.
#include <cstring>
#include <vector>

#include "base/check.h"
#include "codec/codec_testing.h"

using namespace kvcake;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHeadBytes = 4;  // which codec and layout
  if (size < kHeadBytes) return 0;
  const auto rows = CodecRows();
  const CodecRow& row = rows[data[0] % rows.size()];
  if (row.make == nullptr) return 0;
  const KvLayout layout{.layers = 1,
                        .kv_heads = 1 + data[1] % 4,
                        .head_dim = 1 + data[2] % 80,
                        .chunk_tokens = 1 + data[3] % 160};
  // Memory of exactly their sizes, so that the sanitizer sees what is beyond.
  std::vector<std::byte> part(size - kHeadBytes);
  if (!part.empty()) std::memcpy(part.data(), data + kHeadBytes, part.size());
  const auto tables = NaturalTables(row, layout);
  const CodecSpec spec{.layout = layout, .tables = tables ? &*tables : nullptr};
  const SlabPlace place{.layer = 0, .position = data[3]};
  std::vector<uint16_t> first;
  bool good = false;
  for (const CodecIsa isa : CodecIsas()) {
    std::vector<uint16_t> slab(2 * layout.plane_elements());
    const Status status = row.make(spec, isa).value()->Decode(place, part, slab);
    CHECK(status || status.error().code == ErrorCode::kCorrupt);
    if (isa == CodecIsa::kPortable) {
      first = slab;
      good = status.has_value();
    }
    CHECK(status.has_value() == good);
    CHECK(!good || slab == first);
  }
  if (!good || row.lossy) return 0;
  const auto codec = MakeCodec(row.codec, spec).value();
  std::vector<std::byte> again(codec->part_bytes_max());
  const auto bytes = codec->Encode(place, first, again);
  CHECK(bytes && *bytes <= again.size());
  std::vector<uint16_t> decoded(first.size());
  CHECK(codec->Decode(place, std::span(again).first(*bytes), decoded) && decoded == first);
  return 0;
}
