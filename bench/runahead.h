// How much sooner is the first token when several processes prefill the prompt? KV-Runahead's chain
// against one process and against what gathers from all, on the ranks of this run.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "comm/comm.h"
#include "engine/runtime.h"

namespace kvcake::bench {

struct RunaheadOptions {
  std::vector<int> contexts = {2048, 4096, 8192};
  int repeats = 3;
  bool search = false;  // also KVR-S, by measuring
  std::string json;     // path; empty: none
};
// On the leader: `comm` is its end, the other ranks work (WorkForChain).
Status RunRunahead(const RunaheadOptions& options, Runtime& runtime, Comm& comm);

}  // namespace kvcake::bench
