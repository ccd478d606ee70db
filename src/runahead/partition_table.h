// KV-Runahead's KVR-P: partitions that were found for some lengths, interpolated for all others.
#pragma once

#include <compare>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "runahead/partition.h"

namespace kvcake {

// Whose partitions: they fit no other model, machine or number of ranks.
struct PartitionTableKey {
  std::string model;    // its identity, as text
  std::string machine;  // anything that tells machines apart
  int ranks = 0;

  friend auto operator<=>(const PartitionTableKey&, const PartitionTableKey&) = default;
};

// Unsynchronised.
class PartitionTable {
 public:
  // Replaces the entry of the same length. key.ranks is the partition's.
  void Set(const PartitionTableKey& key, const Partition& partition);

  // Shares of the prompt on a straight line between those of the two nearest lengths; beyond the
  // shortest and the longest theirs. kNotFound names the key. tokens >= key.ranks.
  Result<Partition> PartitionFor(const PartitionTableKey& key, int tokens) const;

  nlohmann::json ToJson() const;
  // kInvalidArgument names `source` and the field.
  static Result<PartitionTable> FromJson(const nlohmann::json& json, const std::string& source);

  // kNotFound: no such file; kInvalidArgument names the file and the field.
  static Result<PartitionTable> Load(const std::string& path);
  // A reader sees the old file or the new one.
  Status Save(const std::string& path) const;

 private:
  // By length in tokens.
  using Entries = std::map<int, std::vector<double>>;
  std::map<PartitionTableKey, Entries> tables_;
};

}  // namespace kvcake
