#include "codec/codec_tables.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace kvcake {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMagic = {'K', 'V', 'T', 'A', 'B', 'L', 0x1a, '\n'};
constexpr uint32_t kVersion = 1;

// The file's first bytes, as docs/format.md has them.
struct Header {
  std::array<char, 8> magic;
  uint64_t checksum;  // XXH3-64 of all that follows it
  uint32_t version;
  uint16_t codec, level;
  uint32_t layers, kv_heads, head_dim;
  uint32_t reserved;
  uint64_t body_bytes;
};
static_assert(sizeof(Header) == 48);

uint64_t ChecksumOf(std::span<const std::byte> file) {
  return Xxh3_64(file.subspan(offsetof(Header, version)));
}

}  // namespace

std::vector<std::byte> TablesFile(const CodecTables& tables) {
  const Header header{.magic = kMagic,
                      .checksum = 0,
                      .version = kVersion,
                      .codec = static_cast<uint16_t>(tables.codec),
                      .level = static_cast<uint16_t>(tables.level),
                      .layers = static_cast<uint32_t>(tables.layers),
                      .kv_heads = static_cast<uint32_t>(tables.kv_heads),
                      .head_dim = static_cast<uint32_t>(tables.head_dim),
                      .reserved = 0,
                      .body_bytes = tables.body.size()};
  std::vector<std::byte> file(sizeof(header) + tables.body.size());
  std::memcpy(file.data(), &header, sizeof(header));
  std::copy(tables.body.begin(), tables.body.end(), file.begin() + sizeof(header));
  const uint64_t checksum = ChecksumOf(file);
  std::memcpy(file.data() + offsetof(Header, checksum), &checksum, sizeof(checksum));
  return file;
}

Digest TablesDigest(const CodecTables& tables) {
  return Sha256().Update(TablesFile(tables)).Finish();
}

Result<CodecTables> ParseTables(std::span<const std::byte> file, const std::string& source) {
  const auto bad = [&](const char* why) {
    return Fail(ErrorCode::kCorrupt, "{}: {}; make it anew with kvcake codec fit", source, why);
  };
  Header header;
  if (file.size() < sizeof(header)) return bad("is too short for a file of codec tables");
  std::memcpy(&header, file.data(), sizeof(header));
  if (header.magic != kMagic) return bad("is no file of codec tables");
  if (header.version != kVersion) return bad("is of a version that this kvcake does not read");
  if (header.body_bytes != file.size() - sizeof(header)) return bad("is cut, or too long");
  if (header.checksum != ChecksumOf(file)) return bad("is damaged: its checksum is another");
  constexpr uint32_t kMost = 1 << 20;
  const auto fits = [](uint32_t n) { return n >= 1 && n <= kMost; };
  if (!fits(header.layers) || !fits(header.kv_heads) || !fits(header.head_dim) ||
      header.level < 1 || header.reserved != 0) {
    return bad("has a header that is not one");
  }
  return CodecTables{.codec = static_cast<Codec>(header.codec),
                     .level = header.level,
                     .layers = static_cast<int>(header.layers),
                     .kv_heads = static_cast<int>(header.kv_heads),
                     .head_dim = static_cast<int>(header.head_dim),
                     .body = {file.begin() + sizeof(header), file.end()}};
}

Result<CodecTables> LoadTables(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) {
    return Fail(ErrorCode::kNotFound, "cannot read {}: {}; kvcake codec fit makes codec tables",
                path, std::strerror(errno));
  }
  const auto size = static_cast<int64_t>(in.tellg());
  if (size < 0 || static_cast<uint64_t>(size) > kTablesBytesMax) {
    return Fail(ErrorCode::kCorrupt, "{}: is no file of codec tables, or larger than {} bytes",
                path, kTablesBytesMax);
  }
  std::vector<std::byte> file(static_cast<size_t>(size));
  in.seekg(0);
  if (!in.read(reinterpret_cast<char*>(file.data()), size)) {
    return Fail(ErrorCode::kIo, "cannot read {}", path);
  }
  return ParseTables(file, path);
}

Status SaveTables(const CodecTables& tables, const std::string& path) {
  const std::vector<std::byte> file = TablesFile(tables);
  const std::string temporary = fmt::format("{}.tmp.{}", path, getpid());
  std::ofstream out(temporary, std::ios::binary);
  out.write(reinterpret_cast<const char*>(file.data()), static_cast<int64_t>(file.size()));
  out.close();
  if (out && std::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const int error = errno;
  std::remove(temporary.c_str());
  return Fail(ErrorCode::kIo, "cannot write {}: {}", path, std::strerror(error));
}

Status CheckTables(const CodecTables* tables, Codec codec, const char* name,
                   const KvLayout& layout) {
  if (tables == nullptr || tables->codec != codec) {
    return Fail(ErrorCode::kInvalidArgument,
                "codec {} needs tables of the model: make them with kvcake codec fit", name);
  }
  if (tables->layers == layout.layers && tables->kv_heads == layout.kv_heads &&
      tables->head_dim == layout.head_dim) {
    return {};
  }
  return Fail(ErrorCode::kInvalidArgument,
              "the tables of codec {} are those of another model: they have {} layers of {} heads "
              "of {}, this one {} of {} of {}",
              name, tables->layers, tables->kv_heads, tables->head_dim, layout.layers,
              layout.kv_heads, layout.head_dim);
}

}  // namespace kvcake
