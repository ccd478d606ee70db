#include "ops/sum_words.h"

#include "ops/paths_testing.h"

namespace kvcake {
namespace {

using SumWordsTest = PathTest;

TEST_P(SumWordsTest, AddsEveryWordOnce) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937_64 rng(1);
  for (const size_t count : {16u, 48u, 1u << 13, (5u << 18) + 16}) {
    std::vector<uint64_t> words(count);
    uint64_t want = 5;
    for (uint64_t& word : words) want += word = rng();  // sums wrap around
    const Buffer on_device = ToKernels(GetParam(), words);
    const Buffer sum = ToKernels(GetParam(), std::vector<uint64_t>{5});
    SumWords(compute, {on_device.as<uint64_t>(), count}, sum.as<uint64_t>());
    compute.Wait();
    EXPECT_EQ(FromKernels(GetParam(), sum.as<uint64_t>(), 1)[0], want) << count;
  }
}

KVCAKE_EVERY_PATH_AND_CUDA(SumWordsTest);

}  // namespace
}  // namespace kvcake
