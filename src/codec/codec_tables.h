// What a codec knows of one model: a file made once from some of the model's KV caches, by
// `kvcake codec fit`. docs/format.md has its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "kv/chunk_key.h"
#include "kv/kv_layout.h"

namespace kvcake {

struct CodecTables {
  Codec codec = Codec::kRaw;
  int level = 1;  // of quality, from 1 on; the codec says what it means
  int layers = 0, kv_heads = 0, head_dim = 0;
  uint32_t model = 0;  // TablesModel of the one that they are fitted to; 0: it is not known
  std::vector<std::byte> body;  // the codec's own; its `make` checks it

  bool operator==(const CodecTables&) const = default;
};

// No file of tables is larger.
constexpr uint64_t kTablesBytesMax = 256ull << 20;

std::vector<std::byte> TablesFile(const CodecTables& tables);
// The SHA-256 of the file. Parts can be read by the tables of the same digest only.
Digest TablesDigest(const CodecTables& tables);
// kCorrupt, naming `source`, unless these are the bytes of a whole file of tables.
Result<CodecTables> ParseTables(std::span<const std::byte> file, const std::string& source);

// kNotFound where there is no such file; else as ParseTables.
Result<CodecTables> LoadTables(const std::string& path);
// Replaces the file at once, by way of a temporary one beside it.
Status SaveTables(const CodecTables& tables, const std::string& path);

// Tells a model from others, by all that its identity says but what tables do not depend on: how
// chunks are cut, what weights are stored as, which lossy codecs are used. Never 0.
uint32_t TablesModel(const KvIdentity& identity);

struct CodecSpec;
// kInvalidArgument where there are no tables, or they are another codec's or model's; `name` is the
// codec's.
Status CheckTables(const CodecSpec& spec, Codec codec, const char* name);

}  // namespace kvcake
