// Any bytes as a chunk file: refused, or, header and slabs, what an encoder would write again.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "store/chunk_format.h"

using namespace kvcake;

namespace {

void Put64(std::vector<std::byte>& file, size_t at, uint64_t value) {
  for (int i = 0; i < 8; ++i) file[at + i] = static_cast<std::byte>(value >> (8 * i));
}

// The same for the parts of an encoded chunk.
void MendParts(std::vector<std::byte>& file, uint32_t layers) {
  const bool encrypted = file[80] != std::byte{0};
  const size_t table = encrypted ? 368 : 256;
  const uint32_t layers_max = encrypted ? kEncryptedLayersMax : kEncodedLayersMax;
  uint64_t at = kPageHeaderBytes;
  for (uint32_t i = 0; i < std::min(layers, layers_max); ++i) {
    uint32_t units = 0;
    std::memcpy(&units, &file[table + 28 * i + 8], 4);
    const uint64_t bytes = uint64_t{units} * 64;
    if (bytes > file.size() - at) break;
    Put64(file, table + 28 * i, Xxh3_64(std::span(file).subspan(at, bytes)));
    at += bytes;
  }
}

// Right checksums of the slabs that the header claims and the file has, and of the header itself:
// what is behind them is reached.
void Mend(std::vector<std::byte>& file) {
  uint32_t layers = 0, version = 0;
  std::memcpy(&version, &file[8], 4);
  uint64_t slab_bytes = 0;
  std::memcpy(&layers, &file[24], 4);
  std::memcpy(&slab_bytes, &file[56], 8);
  if (version == kEncodedChunkVersion) MendParts(file, layers);
  for (uint32_t i = 0; i < std::min<uint32_t>(layers, kChunkLayersMax); ++i) {
    if (version == kEncodedChunkVersion) break;
    if (slab_bytes == 0 || (file.size() - kPageHeaderBytes) / slab_bytes <= i) break;
    Put64(file, 192 + 8 * i,
          Xxh3_64(std::span(file).subspan(kPageHeaderBytes + i * slab_bytes, slab_bytes)));
  }
  Put64(file, kPageHeaderBytes - 8, Xxh3_64(std::span(file).first(kPageHeaderBytes - 8)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const bool mend = data[0] & 1;
  const bool pad = data[0] & 2;  // to the length of a header, so that short inputs get further
  std::vector<std::byte> file(size - 1);
  if (!file.empty()) std::memcpy(file.data(), data + 1, file.size());
  if (pad && file.size() < kPageHeaderBytes) file.resize(kPageHeaderBytes);
  if (mend && file.size() >= kPageHeaderBytes) Mend(file);

  const auto chunk = DecodeChunk(file);
  if (file.size() < kPageHeaderBytes) {
    CHECK(!chunk);
    return 0;
  }
  const auto bytes = ConstHeaderBytes(std::span(file).first<kPageHeaderBytes>());
  const auto header = DecodeHeader(bytes);
  CHECK(header || !chunk);
  if (!header) return 0;
  if (chunk) {
    CHECK(*chunk == *header && file.size() == header->file_bytes());
    CHECK(header->encoded() || SlabChecksums(header->layout, file) == header->slab_checksums);
  }
  // A numeric path of a later version reads as unknown and is not kept.
  if (header->numeric_path == NumericPath::kUnknown) return 0;
  std::vector<std::byte> again(kPageHeaderBytes);
  EncodeHeader(HeaderBytes(std::span(again).first<kPageHeaderBytes>()), *header);
  CHECK(std::equal(again.begin(), again.end(), bytes.begin()));
  return 0;
}
