// The questions that kvcake bench answers; one file each. Each prints a table to stdout, checks the
// answers it got on the way, and writes JSON and pictures where it is told to.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace kvcake::bench {

// How fast is prefill, as a share of this machine's matmul rate measured in the same run?
struct PrefillOptions {
  std::string model_dir;  // empty: `arch`, with random weights
  std::string arch = "smollm2-135m";
  std::vector<int> tokens = {512, 2048};
  int repeats = 5;
  int threads = 0;
  std::string json;  // path; empty: none
};
Status RunPrefill(const PrefillOptions& options);

// How long is the wait for the first token under each policy, from slow links to fast ones?
struct TtftOptions {
  std::string model_dir;  // empty: `arch`, with random weights
  std::string arch = "smollm2-135m";
  int context = 4096;
  std::vector<double> ratios = {0.125, 0.25, 0.5, 1, 2, 4, 8};  // load time / compute time
  double latency_s = 0;                                         // of each read
  int repeats = 3;
  int threads = 0;
  std::string json;  // path; empty: none
  std::string svg = "ttft.svg";
};
Status RunTtft(const TtftOptions& options);

// The tour: questions about a long document under each policy, at three link speeds.
struct DemoOptions {
  std::string model_dir;
  std::string document = "/usr/share/common-licenses/GPL-3";
  std::string out_dir = "kvcake-demo";
  int threads = 0;
};
Status RunDemo(const DemoOptions& options);

}  // namespace kvcake::bench
