#include "runahead/partition_table.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/dump_json.h"
#include "base/json_field.h"
#include "base/json_file.h"
#include "io/file_system.h"
#include "model/config_limits.h"

namespace kvcake {
namespace {

constexpr int kRanksMax = 4096;

Result<std::vector<double>> ParseFractions(const JsonField& field, int ranks) {
  const nlohmann::json& list = field.value();
  if (!list.is_array() || list.size() != static_cast<size_t>(ranks)) {
    return field.Bad(fmt::format("is not a list of {}, one per rank", ranks));
  }
  std::vector<double> fractions;
  for (const auto& share : list) {
    if (!share.is_number()) return field.Bad("has something that is not a number");
    fractions.push_back(share.get<double>());
  }
  if (const Status ok = CheckFractions(fractions); !ok) {
    return field.AsRoot().Bad(ok.error().message);
  }
  return fractions;
}

// How many the field has.
Result<size_t> ListSize(const JsonField& field) {
  if (!field.value().is_array()) return field.Bad("is not a list");
  return field.value().size();
}

}  // namespace

void PartitionTable::Set(const PartitionTableKey& key, const Partition& partition) {
  CHECK(CheckPartition(partition, partition.tokens(), key.ranks));
  tables_[key][partition.tokens()] = partition.fractions();
}

Result<Partition> PartitionTable::PartitionFor(const PartitionTableKey& key, int tokens) const {
  CHECK(tokens >= key.ranks);
  const auto table = tables_.find(key);
  if (table == tables_.end() || table->second.empty()) {
    return Fail(ErrorCode::kNotFound,
                "no partitions of {} on {} for {} ranks: search for some, or use the analytic ones",
                key.model, key.machine, key.ranks);
  }
  const Entries& entries = table->second;
  const auto above = entries.lower_bound(tokens);
  if (above == entries.end()) return PartitionOf(entries.rbegin()->second, tokens);
  if (above == entries.begin()) return PartitionOf(above->second, tokens);
  const auto below = std::prev(above);
  const double weight = static_cast<double>(tokens - below->first) / (above->first - below->first);
  std::vector<double> fractions = below->second;
  for (size_t i = 0; i < fractions.size(); ++i) {
    fractions[i] = std::lerp(fractions[i], above->second[i], weight);
  }
  return PartitionOf(fractions, tokens);
}

nlohmann::json PartitionTable::ToJson() const {
  auto tables = nlohmann::json::array();
  for (const auto& [key, entries] : tables_) {
    auto list = nlohmann::json::array();
    for (const auto& [tokens, fractions] : entries) {
      list.push_back({{"tokens", tokens}, {"fractions", fractions}});
    }
    tables.push_back({{"model", key.model},
                      {"machine", key.machine},
                      {"ranks", key.ranks},
                      {"entries", std::move(list)}});
  }
  return {{"version", 1}, {"tables", std::move(tables)}};
}

Result<PartitionTable> PartitionTable::FromJson(const nlohmann::json& json,
                                                const std::string& source) {
  const JsonField root(json, source);
  if (!json.is_object()) return root.Bad("a table of partitions is a JSON object");
  RETURN_IF_ERROR(root["version"].Int(1, 1));
  PartitionTable result;
  const JsonField tables = root["tables"];
  ASSIGN_OR_RETURN(const size_t tables_size, ListSize(tables));
  for (size_t t = 0; t < tables_size; ++t) {
    const JsonField table = tables[t].AsRoot();
    if (!table.value().is_object()) return table.Bad("is not an object");
    PartitionTableKey key;
    ASSIGN_OR_RETURN(key.model, table["model"].Text());
    ASSIGN_OR_RETURN(key.machine, table["machine"].Text());
    ASSIGN_OR_RETURN(key.ranks, table["ranks"].Int(1, kRanksMax));
    ASSIGN_OR_RETURN(const size_t entries_size, ListSize(table["entries"]));
    for (size_t e = 0; e < entries_size; ++e) {
      const JsonField entry = tables[t]["entries"][e].AsRoot();
      if (!entry.value().is_object()) return entry.Bad("is not an object");
      ASSIGN_OR_RETURN(const int tokens, entry["tokens"].Int(key.ranks, kMaxPositions));
      ASSIGN_OR_RETURN(result.tables_[key][tokens], ParseFractions(entry["fractions"], key.ranks));
    }
  }
  return result;
}

Result<PartitionTable> PartitionTable::Load(const std::string& path) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(path));
  return FromJson(json, path);
}

Status PartitionTable::Save(const std::string& path) const {
  return WriteText(FileSystem::Real(), path, DumpJson(ToJson(), 1) + "\n");
}

}  // namespace kvcake
