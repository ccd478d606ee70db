// What do users of a server see of each policy? The same workloads on `kvcake serve`, at several
// link speeds, one policy after the other.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace kvcake::bench {

struct PoliciesOptions {
  std::string model_dir = "models/demo";
  std::string emulate;  // a profile: waits as long as that machine would; empty: the real engine
  std::vector<std::string> workloads = {"long-doc-qa", "multi-round-chat", "trace"};
  std::vector<double> ratios = {0.25, 1, 4};  // link speeds: load / compute of a document
  int document_tokens = 2048;
  int documents = 6;
  std::string trace = "bench/traces/mooncake_synthetic_200.jsonl";
  double length_scale = 0.05;  // of the trace's prompts
  int trace_requests = 40;
  // Requests arrive so fast that computing everything would keep the server busy for this share of
  // the time.
  double load = 0.7;
  std::string ram = "12MiB";  // of pages: what was used a while ago is in the store alone
  int repeats = 3;
  int threads = 0;
  uint64_t seed = 0;
  std::string program;  // empty: this one
  std::string json;     // path; empty: none
};
Status RunPolicies(const PoliciesOptions& options);

}  // namespace kvcake::bench
