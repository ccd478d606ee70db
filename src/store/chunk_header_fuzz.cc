// Any 4 KiB: refused, or a header that encodes back to the same bytes.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "store/chunk_format.h"

using namespace kvcake;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  alignas(8) std::array<std::byte, kPageHeaderBytes> bytes{};
  if (size == 0) return 0;
  const bool mend = data[0] & 1;  // with a right checksum, so that what is behind it is reached
  std::memcpy(bytes.data(), data + 1, std::min(size - 1, bytes.size()));
  if (mend) {
    const uint64_t checksum = Xxh3_64(std::span(bytes).first(kPageHeaderBytes - 8));
    std::memcpy(bytes.data() + kPageHeaderBytes - 8, &checksum, 8);
  }
  const auto header = DecodeHeader(bytes);
  if (!header) return 0;
  // A numeric path of a later version reads as unknown and is not kept.
  if (header->numeric_path == NumericPath::kUnknown) return 0;
  std::array<std::byte, kPageHeaderBytes> again;
  EncodeHeader(again, *header);
  CHECK(again == bytes);
  return 0;
}
