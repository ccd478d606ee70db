#include "bench/read_bandwidth.h"

#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/cpu.h"

namespace kvcake::bench {

namespace {

constexpr uint64_t kBlockBytes = 4 << 20;  // of one worker at a time

// Sixteen chains: enough loads in flight that memory is the limit.
__attribute__((always_inline)) inline uint64_t SumLoop(const uint64_t* words, uint64_t count) {
  std::array<uint64_t, 16> sums = {};
  for (uint64_t i = 0; i < count; i += sums.size()) {
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (uint64_t part : sums) sum += part;
  return sum;
}

#if defined(__x86_64__)
// Wider loads: as wide as those of the kernels that are judged by this.
__attribute__((target("avx512f,prefer-vector-width=512"))) uint64_t SumAvx512(const uint64_t* words,
                                                                              uint64_t count) {
  return SumLoop(words, count);
}
#endif

uint64_t Sum(const uint64_t* words, uint64_t count) {
#if defined(__x86_64__)
  if (Cpu().avx512_bf16) return SumAvx512(words, count);
#endif
  return SumLoop(words, count);
}

}  // namespace

ReadBandwidth::ReadBandwidth(uint64_t bytes) : buffer_(bytes / kBlockBytes * kBlockBytes) {}

double ReadBandwidth::Measure(ThreadPool& pool) {
  const auto blocks = static_cast<int64_t>(buffer_.size() / kBlockBytes);
  if (!std::exchange(touched_, true)) {
    pool.ParallelFor(blocks, [&](int64_t block, int) {
      std::memset(buffer_.data() + block * kBlockBytes, 1, kBlockBytes);
    });
  }
  std::atomic<uint64_t> sum{0};
  const TimePoint start = Clock::Real().Now();
  pool.ParallelFor(blocks, [&](int64_t block, int) {
    const std::byte* from = buffer_.data() + block * kBlockBytes;
    sum += Sum(reinterpret_cast<const uint64_t*>(from), kBlockBytes / sizeof(uint64_t));
  });
  const Seconds took = Clock::Real().Now() - start;
  sum_ += sum;
  return static_cast<double>(buffer_.size()) / took.count();
}

}  // namespace kvcake::bench
