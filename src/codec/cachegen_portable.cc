#include <algorithm>
#include <cstring>

#include "codec/cachegen_kernels.h"
#include "codec/cachegen_tables.h"

namespace kvcake {

bool DecodeRansPortable(RansReader* reader, const RansTable& table, uint64_t count,
                        uint8_t* symbols) {
  for (uint64_t at = 0; at < count; at += kRansLanes) {
    const uint64_t lanes = std::min(kRansLanes, count - at);
    for (uint64_t lane = 0; lane < lanes; ++lane) {
      uint32_t state = reader->states[lane];
      const uint32_t slot = state & (kRansTotal - 1);
      uint32_t symbol = 0;
      for (uint32_t step = kRansSymbolsMax / 2; step > 0; step /= 2) {
        // No branch: which way it goes is as good as random.
        symbol += step * static_cast<uint32_t>((table.of[symbol + step] & 0xffff) <= slot);
      }
      const uint32_t entry = table.of[symbol];
      state = (entry >> 16) * (state >> kRansBits) + slot - (entry & 0xffff);
      if (state < kRansLeast) {
        if (reader->at == reader->end) return false;
        uint16_t word;
        std::memcpy(&word, reader->at, sizeof(word));
        reader->at += sizeof(word);
        state = state << 16 | word;
      }
      reader->states[lane] = state;
      symbols[at + lane] = static_cast<uint8_t>(symbol);
    }
  }
  return true;
}

RansDecoder RansDecoderFor(CodecIsa isa) {
#if defined(__x86_64__)
  if (isa == CodecIsa::kAvx2) return DecodeRansAvx2;
  if (isa == CodecIsa::kAvx512) return DecodeRansAvx512;
#endif
  return DecodeRansPortable;
}

}  // namespace kvcake
