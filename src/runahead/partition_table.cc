#include "runahead/partition_table.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/dump_json.h"
#include "io/file_system.h"
#include "model/config_fields.h"
#include "model/json_field.h"
#include "model/json_file.h"

namespace kvcake {
namespace {

constexpr int kRanksMax = 4096;

Result<std::vector<double>> ParseFractions(const nlohmann::json& entry, int ranks,
                                           const Fields& fields) {
  const auto list = entry.find("fractions");
  if (list == entry.end() || !list->is_array() || list->size() != static_cast<size_t>(ranks)) {
    return fields.Invalid(fmt::format("fractions is not a list of {}, one per rank", ranks));
  }
  std::vector<double> fractions;
  for (const auto& share : *list) {
    if (!share.is_number()) return fields.Invalid("fractions has something that is not a number");
    fractions.push_back(share.get<double>());
  }
  if (const Status ok = CheckFractions(fractions); !ok) {
    return fields.Invalid("fractions: " + ok.error().message);
  }
  return fractions;
}

// A member that is a list.
Result<const nlohmann::json*> List(const nlohmann::json& json, const char* name,
                                   const Fields& fields) {
  const auto list = json.find(name);
  if (list == json.end() || !list->is_array()) {
    return fields.Invalid(fmt::format("{} is not a list", name));
  }
  return &*list;
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

std::vector<int> PartitionTable::LengthsOf(const PartitionTableKey& key) const {
  std::vector<int> lengths;
  const auto table = tables_.find(key);
  if (table == tables_.end()) return lengths;
  for (const auto& entry : table->second) lengths.push_back(entry.first);
  return lengths;
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
  const Fields root(json, source);
  if (!json.is_object()) return root.Invalid("a table of partitions is a JSON object");
  RETURN_IF_ERROR(root.Int("version", 1, 1));
  ASSIGN_OR_RETURN(const nlohmann::json* tables, List(json, "tables", root));
  PartitionTable result;
  for (size_t t = 0; t < tables->size(); ++t) {
    const nlohmann::json& table = (*tables)[t];
    const std::string at = fmt::format("{}: tables[{}]", source, t);
    const Fields fields(table, at);
    if (!table.is_object()) return fields.Invalid("is not an object");
    PartitionTableKey key;
    ASSIGN_OR_RETURN(key.model, JsonField(table, at)["model"].Text());
    ASSIGN_OR_RETURN(key.machine, JsonField(table, at)["machine"].Text());
    ASSIGN_OR_RETURN(key.ranks, fields.Int("ranks", 1, kRanksMax));
    ASSIGN_OR_RETURN(const nlohmann::json* entries, List(table, "entries", fields));
    for (size_t e = 0; e < entries->size(); ++e) {
      const nlohmann::json& entry = (*entries)[e];
      const Fields entry_fields(entry, fmt::format("{}.entries[{}]", at, e));
      if (!entry.is_object()) return entry_fields.Invalid("is not an object");
      ASSIGN_OR_RETURN(const int tokens, entry_fields.Int("tokens", key.ranks, kMaxPositions));
      ASSIGN_OR_RETURN(result.tables_[key][tokens], ParseFractions(entry, key.ranks, entry_fields));
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
