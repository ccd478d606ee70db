// Any bytes as a part, of each codec and of any layout: refused, or the same numbers by every
// instruction set, which a lossless codec keeps when it encodes them again.
#include <cstring>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "codec/codec_testing.h"

using namespace kvcake;

// Null for a codec without. They do not depend on the chunks' length, so that few are fitted.
static const CodecTables* TablesOf(const CodecRow& row, KvLayout layout) {
  static std::map<std::tuple<Codec, int, int>, std::optional<CodecTables>> known;
  layout.chunk_tokens = 16;
  const auto [at, is_new] = known.try_emplace({row.codec, layout.kv_heads, layout.head_dim});
  if (is_new) at->second = NaturalTables(row, layout);
  return at->second ? &*at->second : nullptr;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHeadBytes = 4;  // which codec and layout
  if (size < kHeadBytes) return 0;
  const auto rows = CodecRows();
  const CodecRow& row = rows[data[0] % rows.size()];
  const KvLayout layout{.layers = 1,
                        .kv_heads = 1 + data[1] % 4,
                        .head_dim = 1 + data[2] % 80,
                        .chunk_tokens = 1 + data[3] % 160};
  // Memory of exactly their sizes, so that the sanitizer sees what is beyond.
  std::vector<std::byte> part(size - kHeadBytes);
  if (!part.empty()) std::memcpy(part.data(), data + kHeadBytes, part.size());
  const CodecSpec spec{.layout = layout, .tables = TablesOf(row, layout)};
  const SlabPlace place{.layer = 0, .position = data[3] < 160 ? 1000 : 0};
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
