// How does a server that already runs bear a workload?
#pragma once

#include <string>

#include "bench/traffic.h"
#include "bench/workload.h"

namespace kvcake::bench {

struct TrafficBenchOptions {
  TrafficOptions traffic;
  WorkloadOptions workload;
  std::string json;  // path; empty: none
  std::string svg;   // path; empty: none
};
// Prints the table. Answers that failed are in it; it is an error when none came, and, with
// `check`, when any was another one cold.
Status RunTrafficBench(const TrafficBenchOptions& options);

}  // namespace kvcake::bench
