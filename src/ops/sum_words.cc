#include "ops/sum_words.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "base/check.h"
#include "base/cpu.h"
#include "ops/cuda_kernels.h"

namespace kvcake {
namespace {

constexpr uint64_t kBlockWords = (4 << 20) / sizeof(uint64_t);  // of one worker at a time

// Sixteen chains: enough loads in flight that memory is the limit.
__attribute__((always_inline)) inline uint64_t SumLoop(std::span<const uint64_t> words) {
  std::array<uint64_t, 16> sums = {};
  for (uint64_t i = 0; i < words.size(); i += sums.size()) {
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (uint64_t part : sums) sum += part;
  return sum;
}

#if defined(__x86_64__) && !defined(__clang__)  // which knows no such attribute
#define KVCAKE_WIDE_SUM
// Wider loads: as wide as those of the kernels that are judged by this.
__attribute__((target("avx512f,prefer-vector-width=512"))) uint64_t SumAvx512(
    std::span<const uint64_t> words) {
  return SumLoop(words);
}
#endif

uint64_t Sum(std::span<const uint64_t> words) {
#ifdef KVCAKE_WIDE_SUM
  if (Cpu().avx512_bf16) return SumAvx512(words);
#endif
  return SumLoop(words);
}

}  // namespace

void SumWords(const Compute& compute, std::span<const uint64_t> words, uint64_t* sum) {
  CHECK(words.size() % 16 == 0);
  if (compute.cuda() != nullptr) return cuda::SumWords(*compute.cuda(), words, sum);
  std::atomic<uint64_t> total{0};
  const uint64_t blocks = (words.size() + kBlockWords - 1) / kBlockWords;
  compute.pool().ParallelFor(static_cast<int64_t>(blocks), [&](int64_t block, int) {
    const uint64_t first = static_cast<uint64_t>(block) * kBlockWords;
    total += Sum(words.subspan(first, std::min(kBlockWords, words.size() - first)));
  });
  *sum += total;
}

}  // namespace kvcake
