// How much sooner is the first token when several processes prefill the prompt? KV-Runahead's chain
// against one process and against what gathers from all.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "comm/comm.h"
#include "comm/link_noise.h"
#include "engine/runtime.h"
#include "runahead/chain_cost.h"

namespace kvcake::bench {

// On the ranks of this run.
struct RunaheadOptions {
  std::vector<int> contexts = {2048, 4096, 8192};
  int repeats = 3;
  bool dense = false;   // attention: full rectangles, then a mask, by every method
  bool search = false;  // also KVR-S, by measuring
  std::string json;     // path; empty: none
  std::string svg;      // path; empty: none
};
// On the leader: `comm` is its end, the other ranks work (WorkForChain); `link` is what the planner
// is told.
Status RunRunahead(const RunaheadOptions& options, Runtime& runtime, Comm& comm,
                   const LinkCost& link);

// On emulated GPUs, fitted to the paper's: its tables cell by cell, slow links, noisy links, and a
// rank that is slower than the others.
struct RunaheadPapersOptions {
  std::string tables = "bench/papers";          // kvr_ttft.csv, kvr_bandwidth.csv
  std::string profiles = "bench/profiles/kvr";  // a JSON file for each model
  std::string model;                            // of the tables; empty: all
  int repeats = 3;
  // A pair of neighbours has other traffic, in both directions.
  LinkNoise noise = {.slowdown = 20, .burst_mean = Seconds(0.05), .gap_mean = Seconds(0.05)};
  double slow_rank_speed = 0.5;
  double slow_motion = 4;  // EmulatedRanksOptions; more for short prompts
  std::string json;        // path; empty: none
  std::string svg;         // path of TTFT and partitions; empty: none
  std::string timeline;    // path of a picture of all ranks; empty: none
};
Status RunRunaheadPapers(const RunaheadPapersOptions& options);

}  // namespace kvcake::bench
