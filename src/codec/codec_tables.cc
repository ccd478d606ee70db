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
#include <string_view>

#include "base/read_file.h"
#include "codec/codec.h"

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
  uint32_t model;
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
                      .model = tables.model,
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
      header.level < 1) {
    return bad("has a header that is not one");
  }
  return CodecTables{.codec = static_cast<Codec>(header.codec),
                     .level = header.level,
                     .layers = static_cast<int>(header.layers),
                     .kv_heads = static_cast<int>(header.kv_heads),
                     .head_dim = static_cast<int>(header.head_dim),
                     .model = header.model,
                     .body = {file.begin() + sizeof(header), file.end()}};
}

Result<CodecTables> LoadTables(const std::string& path) {
  const auto file = ReadFile(path, kTablesBytesMax);
  if (file) return ParseTables(std::as_bytes(std::span(*file)), path);
  if (file.error().code == ErrorCode::kNotFound) {
    return Fail(ErrorCode::kNotFound, "{}; kvcake codec fit makes codec tables",
                file.error().message);
  }
  return tl::unexpected(file.error());
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

uint32_t TablesModel(const KvIdentity& identity) {
  constexpr std::string_view kNot[] = {"weights", "chunk_tokens", "layout",
                                       "shard",   "arithmetic",   "lossy"};
  KvIdentity model;
  for (const auto& [name, value] : identity.fields()) {
    if (std::ranges::find(kNot, name) == std::end(kNot)) model.Add(name, value);
  }
  uint32_t told;
  std::memcpy(&told, model.Root().digest.data(), sizeof(told));
  return std::max(told, 1u);
}

Status CheckTables(const CodecSpec& spec, Codec codec, const char* name) {
  const CodecTables* const tables = spec.tables;
  const KvLayout& layout = spec.layout;
  if (tables == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                "codec {} needs tables of the model: make them with kvcake codec fit", name);
  }
  if (tables->codec != codec) {
    const CodecRow* const row = FindCodec(tables->codec);
    return Fail(ErrorCode::kInvalidArgument,
                "codec {} is given tables of codec {}: name the file of its own, or the directory "
                "that kvcake codec fit has made",
                name, row != nullptr ? row->name : "of another version");
  }
  if (tables->layers != layout.layers || tables->kv_heads != layout.kv_heads ||
      tables->head_dim != layout.head_dim) {
    return Fail(ErrorCode::kInvalidArgument,
                "the tables of codec {} are those of another model: they have {} layers of {} "
                "heads of {}, this one {} of {} of {}; make its own with kvcake codec fit",
                name, tables->layers, tables->kv_heads, tables->head_dim, layout.layers,
                layout.kv_heads, layout.head_dim);
  }
  if (tables->model != 0 && spec.model != 0 && tables->model != spec.model) {
    return Fail(ErrorCode::kInvalidArgument,
                "the tables of codec {} are those of another model of the same shape, and would "
                "spoil what this one keeps: make its own with kvcake codec fit",
                name);
  }
  return {};
}

}  // namespace kvcake
