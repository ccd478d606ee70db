#include "bench/named_codecs.h"

#include <fmt/core.h>

#include "model/position.h"

namespace kvcake::bench {

std::string NamedCodec::name() const {
  if (!tables || tables->level == 1) return row->name;
  return fmt::format("{}-{}", row->name, tables->level);
}

CodecSpec NamedCodec::Spec(const KvLayout& layout, uint32_t model) const {
  return {.layout = layout, .tables = tables ? &*tables : nullptr, .model = model};
}

Result<std::vector<NamedCodec>> CodecsNamed(std::span<const std::string> names,
                                            std::span<const std::string> table_files) {
  std::vector<CodecTables> all;
  for (const std::string& path : table_files) {
    ASSIGN_OR_RETURN(all.emplace_back(), LoadTables(path));
  }
  std::vector<bool> used(all.size());
  std::vector<NamedCodec> codecs;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(const CodecRow* const row, CodecNamed(name));
    if (row->codec == Codec::kRaw) {
      return Fail(ErrorCode::kInvalidArgument, "--kv-codec {} leaves chunks as they are", name);
    }
    if (row->fit == nullptr) {
      codecs.push_back({.row = row, .tables = {}});
      continue;
    }
    const size_t before = codecs.size();
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].codec != row->codec) continue;
      codecs.push_back({.row = row, .tables = all[i]});
      used[i] = true;
    }
    if (codecs.size() == before) {
      return Fail(ErrorCode::kInvalidArgument,
                  "codec {} needs tables of the model: make them with kvcake codec fit, and name "
                  "the file with --codec-tables",
                  name);
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (used[i]) continue;
    return Fail(ErrorCode::kInvalidArgument,
                "--codec-tables {}: they are of no codec that --kv-codec names", table_files[i]);
  }
  return codecs;
}

std::vector<float> InverseFrequencies(const ModelConfig& config) {
  if (config.position != PositionKind::kRope) return {};
  return RopeInverseFrequencies(config.rope, config.head_dim);
}

}  // namespace kvcake::bench
