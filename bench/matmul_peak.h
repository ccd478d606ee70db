// The matmul rate of this machine: the yardstick of prefill.
#pragma once

#include <string>
#include <vector>

#include "base/thread_pool.h"

namespace kvcake::bench {

struct MatmulRate {
  std::string what;  // "onednn bf16", "kvcake bf16-dot", ...
  bool bf16 = false;
  double flops_per_s = 0;
};

// Every matmul this machine has, M=512 K=2048 N=8192, all threads of the pool, best of several.
std::vector<MatmulRate> MeasureMatmulRates(ThreadPool& pool);
// The fastest of one arithmetic type.
double BestRate(const std::vector<MatmulRate>& rates, bool bf16);

}  // namespace kvcake::bench
