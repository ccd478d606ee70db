// KV-Runahead's KVR-S: a hierarchical grid search for the partition that is measured to be fastest.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "runahead/partition.h"

namespace kvcake {

struct MeasuredPartition {
  Partition partition;
  double seconds = 0;
};

// All that a search knows. It has no other memory: run again on its state it takes the same steps,
// without measuring what was measured.
struct SearchState {
  std::string what;  // whose measurements: model, machine and method
  int tokens = 0;
  int stride_min_tokens = 0;                     // bounds are its multiples: chunk_tokens
  Partition seed;                                // where it starts
  bool seeded = false;                           // the seed is from neighbours, not the even one
  std::vector<MeasuredPartition> measured = {};  // in order

  nlohmann::json ToJson() const;
  // kInvalidArgument names `source` and the field.
  static Result<SearchState> FromJson(const nlohmann::json& json, const std::string& source);
};

struct SearchProgress {
  int stride_tokens = 0;
  int measurements = 0;  // so far, with those of earlier runs
  const MeasuredPartition& last;
  const MeasuredPartition& best;
};

struct SearchOptions {
  std::string what;
  int tokens = 0;
  int ranks = 0;
  int stride_min_tokens = 128;
  // A good partition, as a table's: the search begins around it with a fourth of the stride.
  std::optional<Partition> seed = {};
  // Keeps the state here after each measurement, and goes on from what is here. Empty: nowhere.
  std::string state_path = {};
  std::function<void(const SearchProgress&)> progress = {};
};

struct SearchResult {
  MeasuredPartition best;
  int measurements = 0;  // with those of earlier runs
  int resumed = 0;       // of them, from the file
};

// Seconds to the first token; whoever measures repeats as noise demands.
using MeasurePartition = std::function<Result<double>(const Partition&)>;

// Bounds are the even ones plus offsets. Around the best so far it measures five values of an
// offset, strides -2 to 2, and keeps the best; strides halve down to the least, where only the
// neighbours are new. With two ranks that is a binary search. With more, a joint grid would take
// 5^(p-1): one line after the other is tried instead, again while that helps but three times at
// most. The lines take tokens evenly from all ranks after a bound for all before it, or from one
// rank for its neighbour: with single bounds alone it would stop wherever two ranks are the slowest
// together. At 16K in chunks of 128 that is some 15 measurements for 2 ranks, 90 for 4 and 240 for
// 8; seeded, 10, 40 and 95.
//
// kInvalidArgument: too few tokens for the stride, or the file is of another search; otherwise what
// `measure` or the file system said. Not thread-safe.
Result<SearchResult> SearchPartition(const SearchOptions& options, const MeasurePartition& measure);

}  // namespace kvcake
