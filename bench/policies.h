// What do users of a server see of each policy? The same workloads on `kvcake serve`, one policy
// after the other: at several link speeds, when a link fails, and up to what rate of requests.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "bench/policy_lab.h"

namespace kvcake::bench {

struct PoliciesOptions : PolicyLabOptions {
  std::vector<std::string> workloads = {"long-doc-qa", "multi-round-chat", "trace"};
  std::vector<double> ratios = {0.25, 1, 4};  // link speeds: load / compute of a document
  double load = 0.7;                          // PolicyLab::Make's
  int repeats = 3;
  std::string json;  // path; empty: none
};
Status RunPolicies(const PoliciesOptions& options);

// The same with a link of which some reads are late, and with one that dies.
struct OutagesOptions : PolicyLabOptions {
  std::string workload = "long-doc-qa";
  double ratio = 0.5;
  double load = 0.7;
  double stall_share = 0.01;  // of reads
  double stall_s = 0.5;
  int repeats = 3;
  std::string json;  // path; empty: none
};
Status RunOutages(const OutagesOptions& options);

// The most requests a second of which 95% have their first token within a limit.
struct CapacityOptions : PolicyLabOptions {
  std::string workload = "long-doc-qa";
  std::vector<double> ratios = {0.25, 1};
  double ttft_max_s = 0;                    // 0: twice as long as computing a document
  int repeats = 3;                          // of each rate; the median p95 counts
  double load_min = 0.08, load_max = 11.2;  // PolicyLab::Make's
  std::string json;                         // path; empty: none
};
Status RunCapacity(const CapacityOptions& options);

}  // namespace kvcake::bench
