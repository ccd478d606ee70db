#include "bench/read_bandwidth.h"

#include <cstring>
#include <utility>

#include "base/clock.h"
#include "ops/sum_words.h"

namespace kvcake::bench {
namespace {

constexpr uint64_t kBlockBytes = 4 << 20;  // of one worker at a time
constexpr int kCudaPasses = 16;            // a launch and a wait are long beside one

}  // namespace

ReadBandwidth::ReadBandwidth(NumericPath path, uint64_t bytes)
    : buffer_(bytes / kBlockBytes * kBlockBytes, MemoryOf(path)),
      sum_(sizeof(uint64_t), MemoryOf(path)),
      touched_(OnCuda(path)) {}

double ReadBandwidth::Measure(const Compute& compute) {
  if (!std::exchange(touched_, true)) {
    const auto blocks = static_cast<int64_t>(buffer_.size() / kBlockBytes);
    compute.pool().ParallelFor(blocks, [&](int64_t block, int) {
      std::memset(buffer_.data() + block * kBlockBytes, 1, kBlockBytes);
    });
  }
  const int passes = OnCuda(compute.path()) ? kCudaPasses : 1;
  const TimePoint start = Clock::Real().Now();
  for (int pass = 0; pass < passes; ++pass) {
    SumWords(compute, {buffer_.as<uint64_t>(), buffer_.size() / sizeof(uint64_t)},
             sum_.as<uint64_t>());
  }
  compute.Wait();
  const Seconds took = Clock::Real().Now() - start;
  return static_cast<double>(buffer_.size()) * passes / took.count();
}

}  // namespace kvcake::bench
