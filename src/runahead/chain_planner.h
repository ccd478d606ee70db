// How prompts are divided among the ranks of a chain, from what ranks have been seen to take.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "io/file_system.h"
#include "kv/slice_time.h"
#include "runahead/chain.h"
#include "runahead/chain_cost.h"
#include "runahead/partition_table.h"

namespace kvcake {

struct ChainPlannerOptions {
  // analytic: by the costs below, on as many ranks as pay. Else on all ranks, always: even; table,
  // that of `table`, and of a prompt whose beginning is kept analytic; ParsePartition's shares or
  // tokens.
  std::string partition = "analytic";
  PartitionTable table = {};  // has entries for the key
  PartitionTableKey table_key = {};
  int chunk_tokens = 128;
  int layers = 1;
  double bytes_per_token_layer = 0;
  LinkCost link = {};
  // What a later survey makes of it; empty: it stays.
  std::function<LinkCost(const Survey&)> link_of = {};
  // What a slice takes on the leader, as it is known by now; b = 0: nothing is.
  std::function<SliceTime()> time;
  // How fast each rank has been found to be, against `time`, is kept here after each prompt, and
  // read at the start: whatever is there that is no such file teaches nothing. Empty: nowhere.
  // Nobody waits for a directory that hangs.
  std::string speeds_path = {};
  FileSystem* fs = nullptr;  // nullptr: the real one
};

// kInvalidArgument names --partition; kNotFound: no entry of the table is for the key.
Result<std::unique_ptr<ChainPlanner>> NewChainPlanner(ChainPlannerOptions options);

}  // namespace kvcake
