// The matmul rate of this machine: the yardstick of prefill.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kv/kv_layout.h"
#include "ops/packed_matrix.h"

namespace kvcake::bench {

enum class MatmulType { kBf16, kF32, kInt8 };
const char* MatmulTypeName(MatmulType type);
// The type that a path multiplies in.
MatmulType MatmulTypeOf(NumericPath path, WeightFormat weights);

struct MatmulRate {
  std::string what;  // "oneDNN", "kvcake bf16-dot", ...
  MatmulType type = MatmulType::kF32;
  double flops_per_s = 0;
};

// The best rate seen so far of every matmul that a path's device has. The CPU: M=512, K=2048,
// N=8192, each worker of the pool on its own columns. CUDA: cuBLASLt's, of matrices of 8192.
class MatmulPeak {
 public:
  // Measures all of them once more; takes seconds. What they need is freed again.
  void Measure(ThreadPool& pool, NumericPath path);

  std::span<const MatmulRate> rates() const { return rates_; }
  // The fastest of a type, in FLOP/s; 0 when nothing here multiplies in it.
  double Best(MatmulType type) const;
  // A line for each rate, to stdout.
  void Print() const;

 private:
  void Add(MatmulRate rate);

  std::vector<MatmulRate> rates_;
};

}  // namespace kvcake::bench
