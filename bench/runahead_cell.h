// One prompt through the same ranks by one method after the other, and against one process.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/rank_trial.h"
#include "runahead/chain_cost.h"
#include "runahead/partition.h"

namespace kvcake::bench {

struct RankMethodPlan {
  std::string name;  // single, tsp, zigzag, kvr-e, kvr, kvr-s
  RankMethod how = RankMethod::kChain;
  Partition partition = {};  // empty: single
};

struct MethodResult {
  RankMethodPlan method;
  std::vector<double> ttft_s = {};   // of each repeat
  std::vector<double> bound_s = {};  // the slowest rank of the same without exchange; not of single
  uint64_t sent_bytes = 0;

  double ttft() const;   // medians
  double bound() const;  // of single: its ttft
};

struct CellOptions {
  int repeats = 3;        // interleaved
  int bound_repeats = 3;  // of them, those that are run without exchange too
  bool single = true;
  bool search = false;     // kvr-s too
  int search_repeats = 2;  // of each partition that it measures
};

// That of `kvr`: the analytic one, at chunks' bounds where that costs little.
Partition PlannedPartition(const ChainCost& cost, int tokens, int chunk_tokens);
// The baselines, even parts, and these: tsp, zigzag, kvr-e, kvr.
std::vector<RankMethodPlan> PlansWith(Partition kvr);

// Fails where two methods do not agree on the first token. Single first, if it is asked for.
Result<std::vector<MethodResult>> MeasureCell(RankTrial& trial, std::vector<RankMethodPlan> plans,
                                              const std::vector<int32_t>& prompt,
                                              const CellOptions& options);

// Finds the method in the results of one cell; nullptr where it was not measured.
const MethodResult* FindMethod(const std::vector<MethodResult>& results, const std::string& name);

struct CellNames {
  std::string setting;  // real, emulated, ...
  std::string model;
  std::string attention;  // causal or dense
  int tokens = 0;
  int ranks = 0;
};
void PrintCellHeader();
void PrintCell(const CellNames& names, const std::vector<MethodResult>& results);
void AddJson(const CellNames& names, const std::vector<MethodResult>& results,
             nlohmann::ordered_json* list);

}  // namespace kvcake::bench
