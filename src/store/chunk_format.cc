#include "store/chunk_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "codec/codec.h"

namespace kvcake {
namespace {

constexpr std::array<char, 8> kMagic = {'K', 'V', 'C', 'A', 'K', 'E', '\x1a', '\n'};
constexpr uint16_t kDTypeBf16 = 1;
constexpr uint16_t kAes256Gcm = 1;  // encryption

// Byte offsets in the header; docs/format.md is the same table.
enum Offset : size_t {
  kMagicAt = 0,
  kVersionAt = 8,
  kHeaderBytesAt = 12,
  kFlagsAt = 16,
  kLayersAt = 24,
  kKvHeadsAt = 28,
  kHeadDimAt = 32,
  kChunkTokensAt = 36,
  kDTypeAt = 40,
  kCodecAt = 42,
  kNumericPathAt = 44,
  kReserved16At = 46,
  kFileBytesAt = 48,
  kSlabBytesAt = 56,
  kSlabPayloadAt = 64,
  kReservedAt = 72,
  kKeyAt = 96,
  kParentAt = 128,
  kRootAt = 160,
  kSlabChecksumsAt = 192,
  // Version 2 has, from 72 on:
  kPositionAt = 72,
  kEncryptionAt = 80,
  kReserved82At = 82,
  kTablesAt = 192,
  kSaltAt = 224,
  kPartsAt = 256,
  // One that is encrypted has, from 256 on:
  kIdentityAt = 256,
  kIdentityTagAt = 352,
  kEncryptedPartsAt = 368,
  kHeaderChecksumAt = 4088,
};
// A part's checksum, its bytes in units of kPartAlign, and the tag of encryption.
constexpr size_t kPartEntryBytes = 28;
constexpr size_t kPartUnitsAt = 8, kPartTagAt = 12;
static_assert(kSlabChecksumsAt + 8 * kChunkLayersMax == kHeaderChecksumAt);
static_assert(kPartsAt + kPartEntryBytes * kEncodedLayersMax <= kHeaderChecksumAt);
static_assert(kPartsAt + kPartEntryBytes * (kEncodedLayersMax + 1) > kHeaderChecksumAt);
static_assert(kEncryptedPartsAt + kPartEntryBytes * kEncryptedLayersMax <= kHeaderChecksumAt);
static_assert(kEncryptedPartsAt + kPartEntryBytes * (kEncryptedLayersMax + 1) > kHeaderChecksumAt);
static_assert(kAssociatedBytes == kIdentityAt);
static_assert(kHeaderChecksumAt + 8 == kPageHeaderBytes);

template <typename T>
void Store(HeaderBytes out, size_t at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out[at + i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T Load(ConstHeaderBytes in, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(in[at + i]) << (8 * i));
  }
  return value;
}

template <typename Bytes>
void StoreBytes(HeaderBytes out, size_t at, const Bytes& bytes) {
  static_assert(sizeof(bytes[0]) == 1);
  std::memcpy(&out[at], bytes.data(), bytes.size());
}

template <typename Bytes>
Bytes LoadBytes(ConstHeaderBytes in, size_t at) {
  Bytes bytes;
  static_assert(sizeof(bytes[0]) == 1);
  std::memcpy(bytes.data(), &in[at], bytes.size());
  return bytes;
}

bool AllZero(ConstHeaderBytes in, size_t begin, size_t end) {
  return std::all_of(in.begin() + begin, in.begin() + end,
                     [](std::byte b) { return b == std::byte{0}; });
}

template <typename T>
Status Expect(ConstHeaderBytes in, size_t at, T expected, const char* field) {
  const T value = Load<T>(in, at);
  if (value != expected) {
    return Fail(ErrorCode::kCorrupt, "{} is {}, must be {}", field, value, expected);
  }
  return {};
}

uint64_t HeaderChecksum(ConstHeaderBytes in) { return Xxh3_64(in.first(kHeaderChecksumAt)); }

// A dimension that no real layout exceeds, so that sizes computed from it cannot overflow.
Status LoadDimension(ConstHeaderBytes in, size_t at, const char* field, int& out) {
  constexpr uint32_t kDimensionMax = 1u << 20;
  const uint32_t value = Load<uint32_t>(in, at);
  if (value == 0 || value > kDimensionMax) {
    return Fail(ErrorCode::kCorrupt, "{} is {}, must be in [1, {}]", field, value, kDimensionMax);
  }
  out = static_cast<int>(value);
  return {};
}

Status LoadLayout(ConstHeaderBytes in, int layers_max, KvLayout& layout) {
  RETURN_IF_ERROR(LoadDimension(in, kLayersAt, "layers", layout.layers));
  RETURN_IF_ERROR(LoadDimension(in, kKvHeadsAt, "kv_heads", layout.kv_heads));
  RETURN_IF_ERROR(LoadDimension(in, kHeadDimAt, "head_dim", layout.head_dim));
  RETURN_IF_ERROR(LoadDimension(in, kChunkTokensAt, "chunk_tokens", layout.chunk_tokens));
  if (layout.layers > layers_max) {
    return Fail(ErrorCode::kCorrupt, "layers is {}, must be at most {}", layout.layers, layers_max);
  }
  // At most 2^62, so it has not overflowed; what is larger than any memory would further on.
  constexpr uint64_t kSlabBytesMax = 1ull << 40;
  if (layout.slab_payload_bytes() > kSlabBytesMax) {
    return Fail(ErrorCode::kCorrupt, "a slab has {} bytes, must have at most {}",
                layout.slab_payload_bytes(), kSlabBytesMax);
  }
  return {};
}

size_t PartsAt(const ChunkHeader& header) {
  return header.encryption ? kEncryptedPartsAt : kPartsAt;
}

void StoreLayers(HeaderBytes out, const ChunkHeader& header) {
  for (size_t i = 0; i < header.slab_checksums.size(); ++i) {
    Store<uint64_t>(out, kSlabChecksumsAt + 8 * i, header.slab_checksums[i]);
  }
  if (!header.encoded()) return;
  Store<uint64_t>(out, kPositionAt, static_cast<uint64_t>(header.position));
  if (header.encryption) {
    Store<uint16_t>(out, kEncryptionAt, kAes256Gcm);
    StoreBytes(out, kSaltAt, header.encryption->salt);
    StoreBytes(out, kIdentityAt, header.encryption->identity);
    StoreBytes(out, kIdentityTagAt, header.encryption->identity_tag);
  }
  StoreBytes(out, kTablesAt, header.tables);
  for (size_t i = 0; i < header.parts.size(); ++i) {
    const ChunkPart& part = header.parts[i];
    const size_t at = PartsAt(header) + kPartEntryBytes * i;
    const uint64_t units = part.bytes / kPartAlign;
    CHECK(units > 0 && units <= UINT32_MAX && part.bytes % kPartAlign == 0);
    Store<uint64_t>(out, at, part.checksum);
    Store<uint32_t>(out, at + kPartUnitsAt, units);
    StoreBytes(out, at + kPartTagAt, part.tag);
  }
}

Status LoadSlabs(ConstHeaderBytes in, ChunkHeader& header) {
  const KvLayout& layout = header.layout;
  RETURN_IF_ERROR(Expect<uint16_t>(in, kCodecAt, static_cast<uint16_t>(Codec::kRaw), "codec"));
  const size_t checksums_end = kSlabChecksumsAt + 8 * layout.layers;
  if (!AllZero(in, kReservedAt, kKeyAt) || !AllZero(in, checksums_end, kHeaderChecksumAt)) {
    return Fail(ErrorCode::kCorrupt, "reserved header bytes are not zero");
  }
  header.slab_checksums.resize(layout.layers);
  for (int layer = 0; layer < layout.layers; ++layer) {
    header.slab_checksums[layer] = Load<uint64_t>(in, kSlabChecksumsAt + 8 * layer);
  }
  return {};
}

Status LoadParts(ConstHeaderBytes in, ChunkHeader& header) {
  constexpr uint64_t kPositionMax = 1ull << 40;
  const uint64_t position = Load<uint64_t>(in, kPositionAt);
  if (position > kPositionMax) {
    return Fail(ErrorCode::kCorrupt, "position is {}, must be at most {}", position, kPositionMax);
  }
  const bool encrypted = Load<uint16_t>(in, kEncryptionAt) != 0;
  if (encrypted) {
    RETURN_IF_ERROR(Expect<uint16_t>(in, kEncryptionAt, kAes256Gcm, "encryption"));
    header.encryption = {
        .salt = LoadBytes<FileSalt>(in, kSaltAt),
        .identity = LoadBytes<decltype(ChunkEncryption::identity)>(in, kIdentityAt),
        .identity_tag = LoadBytes<PartTag>(in, kIdentityTagAt)};
  }
  const int layers = header.layout.layers;
  const int layers_max = encrypted ? kEncryptedLayersMax : kEncodedLayersMax;
  if (layers > layers_max) {
    return Fail(ErrorCode::kCorrupt, "layers is {}, must be at most {}", layers, layers_max);
  }
  const uint16_t codec = Load<uint16_t>(in, kCodecAt);
  const CodecRow* const row = FindCodec(static_cast<Codec>(codec));
  if (row == nullptr || (row->codec == Codec::kRaw && !encrypted)) {
    return Fail(ErrorCode::kCorrupt, "codec is {}, which is none of an encoded chunk", codec);
  }
  const size_t parts_end = PartsAt(header) + kPartEntryBytes * layers;
  if (!AllZero(in, kReserved82At, kKeyAt) || (!encrypted && !AllZero(in, kSaltAt, kPartsAt)) ||
      !AllZero(in, parts_end, kHeaderChecksumAt)) {
    return Fail(ErrorCode::kCorrupt, "reserved header bytes are not zero");
  }
  header.codec = row->codec;
  header.position = static_cast<int64_t>(position);
  header.tables = LoadBytes<Digest>(in, kTablesAt);
  header.parts.resize(layers);
  for (int layer = 0; layer < layers; ++layer) {
    const size_t at = PartsAt(header) + kPartEntryBytes * layer;
    const uint64_t units = Load<uint32_t>(in, at + kPartUnitsAt);
    if (units == 0) return Fail(ErrorCode::kCorrupt, "the part of layer {} is empty", layer);
    header.parts[layer] = {.bytes = units * kPartAlign,
                           .checksum = Load<uint64_t>(in, at),
                           .tag = LoadBytes<PartTag>(in, at + kPartTagAt)};
    if (!encrypted && header.parts[layer].tag != PartTag{}) {
      return Fail(ErrorCode::kCorrupt, "layer {} has a tag, and nothing is encrypted", layer);
    }
  }
  return {};
}

}  // namespace

uint64_t ChunkHeader::layer_offset(int layer) const {
  if (!encoded()) return layout.slab_offset(layer);
  uint64_t offset = kPageHeaderBytes;
  for (int i = 0; i < layer; ++i) offset += parts[i].bytes;
  return offset;
}

uint64_t ChunkHeader::file_bytes() const {
  if (!encoded()) return layout.page_bytes();
  return (layer_offset(layout.layers) + kSlabAlign - 1) / kSlabAlign * kSlabAlign;
}

Status CheckStorable(const KvLayout& layout, Codec codec, bool encrypted) {
  const bool raw = codec == Codec::kRaw;
  const int layers_max = encrypted ? kEncryptedLayersMax
                         : raw     ? kChunkLayersMax
                                   : kEncodedLayersMax;
  if (layout.layers > layers_max) {
    return Fail(ErrorCode::kUnsupported, "a chunk file{} holds at most {} layers, the model has {}",
                encrypted ? " that is encrypted"
                : raw     ? ""
                          : " with a codec",
                layers_max, layout.layers);
  }
  if (layout.layers < 1 || layout.kv_heads < 1 || layout.head_dim < 1 || layout.chunk_tokens < 1) {
    return Fail(ErrorCode::kInvalidArgument, "the KV layout has an empty dimension");
  }
  if (layout.page_bytes() > kChunkBytesMax) {
    return Fail(ErrorCode::kUnsupported,
                "a chunk of {} tokens has {} bytes, more than the {} that are stored in one: use "
                "chunks of fewer tokens",
                layout.chunk_tokens, layout.page_bytes(), kChunkBytesMax);
  }
  return {};
}

void EncodeHeader(HeaderBytes out, const ChunkHeader& header) {
  const KvLayout& layout = header.layout;
  const auto layers = static_cast<size_t>(layout.layers);
  CHECK(CheckStorable(layout, header.codec, header.encryption.has_value()));
  CHECK(header.slab_checksums.size() == (header.encoded() ? 0 : layers));
  CHECK(header.parts.size() == (header.encoded() ? layers : 0));
  std::memset(out.data(), 0, out.size());
  std::memcpy(out.data(), kMagic.data(), kMagic.size());
  Store<uint32_t>(out, kVersionAt, header.encoded() ? kEncodedChunkVersion : kChunkVersion);
  Store<uint32_t>(out, kHeaderBytesAt, kPageHeaderBytes);
  Store<uint32_t>(out, kLayersAt, layout.layers);
  Store<uint32_t>(out, kKvHeadsAt, layout.kv_heads);
  Store<uint32_t>(out, kHeadDimAt, layout.head_dim);
  Store<uint32_t>(out, kChunkTokensAt, layout.chunk_tokens);
  Store<uint16_t>(out, kDTypeAt, kDTypeBf16);
  Store<uint16_t>(out, kCodecAt, static_cast<uint16_t>(header.codec));
  Store<uint16_t>(out, kNumericPathAt, static_cast<uint16_t>(header.numeric_path));
  Store<uint64_t>(out, kFileBytesAt, header.file_bytes());
  Store<uint64_t>(out, kSlabBytesAt, layout.slab_bytes());
  Store<uint64_t>(out, kSlabPayloadAt, layout.slab_payload_bytes());
  StoreBytes(out, kKeyAt, header.key.digest);
  StoreBytes(out, kParentAt, header.parent.digest);
  StoreBytes(out, kRootAt, header.root.digest);
  StoreLayers(out, header);
  Store<uint64_t>(out, kHeaderChecksumAt, HeaderChecksum(out));
}

Result<ChunkHeader> DecodeHeader(ConstHeaderBytes in) {
  if (std::memcmp(in.data(), kMagic.data(), kMagic.size()) != 0) {
    return Fail(ErrorCode::kCorrupt, "the magic is not that of a chunk file");
  }
  const uint32_t version = Load<uint32_t>(in, kVersionAt);
  const bool encoded = version == kEncodedChunkVersion;
  if (!encoded && version != kChunkVersion) {
    return Fail(ErrorCode::kCorrupt, "version is {}, must be {} or {}", version, kChunkVersion,
                kEncodedChunkVersion);
  }
  if (HeaderChecksum(in) != Load<uint64_t>(in, kHeaderChecksumAt)) {
    return Fail(ErrorCode::kCorrupt, "the header's checksum does not match its bytes");
  }
  // From here on the bytes are what a writer meant; the rest refuses what this version never wrote.
  RETURN_IF_ERROR(Expect<uint32_t>(in, kHeaderBytesAt, kPageHeaderBytes, "header bytes"));
  RETURN_IF_ERROR(Expect<uint64_t>(in, kFlagsAt, 0, "flags"));
  ChunkHeader header;
  RETURN_IF_ERROR(LoadLayout(in, encoded ? kEncodedLayersMax : kChunkLayersMax, header.layout));
  RETURN_IF_ERROR(Expect<uint16_t>(in, kDTypeAt, kDTypeBf16, "dtype"));
  if (!AllZero(in, kReserved16At, kFileBytesAt)) {
    return Fail(ErrorCode::kCorrupt, "reserved header bytes are not zero");
  }
  RETURN_IF_ERROR(encoded ? LoadParts(in, header) : LoadSlabs(in, header));
  RETURN_IF_ERROR(Expect<uint64_t>(in, kFileBytesAt, header.file_bytes(), "file bytes"));
  RETURN_IF_ERROR(Expect<uint64_t>(in, kSlabBytesAt, header.layout.slab_bytes(), "slab bytes"));
  RETURN_IF_ERROR(Expect<uint64_t>(in, kSlabPayloadAt, header.layout.slab_payload_bytes(),
                                   "slab payload bytes"));
  const uint16_t path = Load<uint16_t>(in, kNumericPathAt);
  if (path <= static_cast<uint16_t>(NumericPath::kBf16Amx)) {
    header.numeric_path = static_cast<NumericPath>(path);
  }
  header.key.digest = LoadBytes<Digest>(in, kKeyAt);
  header.parent.digest = LoadBytes<Digest>(in, kParentAt);
  header.root.digest = LoadBytes<Digest>(in, kRootAt);
  return header;
}

Status CheckSameChunk(const ChunkHeader& header, const ChunkHeader& expected) {
  const auto differs = [](const char* field) {
    return Fail(ErrorCode::kCorrupt, "it belongs to another chunk: its {} differs", field);
  };
  if (header.root != expected.root) return differs("root key");
  if (header.key != expected.key) return differs("key");
  if (header.parent != expected.parent) return differs("parent key");
  if (header.layout != expected.layout) return differs("layout");
  if (header.codec != expected.codec) return differs("codec");
  if (header.tables != expected.tables) return differs("codec tables");
  if (header.encryption.has_value() != expected.encryption.has_value())
    return differs("encryption");
  return {};
}

std::vector<uint64_t> SlabChecksums(const KvLayout& layout, std::span<const std::byte> page) {
  CHECK(page.size() >= layout.page_bytes());
  std::vector<uint64_t> checksums(layout.layers);
  for (int layer = 0; layer < layout.layers; ++layer) {
    checksums[layer] = Xxh3_64(page.subspan(layout.slab_offset(layer), layout.slab_bytes()));
  }
  return checksums;
}

Status VerifySlab(const ChunkHeader& header, int layer, std::span<const std::byte> slab) {
  const uint64_t expected =
      header.encoded() ? header.parts[layer].checksum : header.slab_checksums[layer];
  if (Xxh3_64(slab) == expected) return {};
  return Fail(ErrorCode::kCorrupt, "the checksum of layer {} does not match its bytes", layer);
}

Status VerifySlabs(const ChunkHeader& header, std::span<const std::byte> page) {
  CHECK(page.size() >= header.file_bytes());
  uint64_t at = kPageHeaderBytes;
  for (int layer = 0; layer < header.layout.layers; ++layer) {
    const uint64_t bytes = header.layer_bytes(layer);
    RETURN_IF_ERROR(VerifySlab(header, layer, page.subspan(at, bytes)));
    at += bytes;
  }
  const auto rest = page.subspan(at, header.file_bytes() - at);
  if (std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; })) {
    return {};
  }
  return Fail(ErrorCode::kCorrupt, "the bytes after the last layer are not zero");
}

Status CheckFileBytes(const ChunkHeader& header, uint64_t bytes) {
  if (bytes == header.file_bytes()) return {};
  return Fail(ErrorCode::kCorrupt, "it has {} bytes, must have {}", bytes, header.file_bytes());
}

Result<ChunkHeader> DecodeChunk(std::span<const std::byte> file) {
  if (file.size() < kPageHeaderBytes) {
    return Fail(ErrorCode::kCorrupt, "it has {} bytes, fewer than a header", file.size());
  }
  ASSIGN_OR_RETURN(ChunkHeader header, DecodeHeader(file.first<kPageHeaderBytes>()));
  RETURN_IF_ERROR(CheckFileBytes(header, file.size()));
  RETURN_IF_ERROR(VerifySlabs(header, file));
  return header;
}

}  // namespace kvcake
