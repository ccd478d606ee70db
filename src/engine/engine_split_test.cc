// Restorations that meet where the test says, on models of every family.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>

#include "base/source_dir_testing.h"
#include "engine/engine_testing.h"
#include "ops/paths_testing.h"

namespace kvcake {
namespace {

// Random models, where any slip shows in the bits, and the trained one, which looks things up.
class ForcedSplitTest : public testing::TestWithParam<std::tuple<const char*, NumericPath>> {
 protected:
  void SetUp() override {
    if (!PathAvailable(path())) GTEST_SKIP() << "there is no CUDA device";
  }
  static std::string model() { return std::get<0>(GetParam()); }
  static NumericPath path() { return std::get<1>(GetParam()); }

  static void Check(WeightFormat weights, int splits) {
    const std::string dir =
        model() == "demo" ? SourceDir() + "/models/demo" : std::string(ModelDir(model()));
    auto tier = MakeTier(dir, path());
    const auto prompt = Prompt(1100, 3);
    World world(tier.get(), {.dir = dir, .weights = weights, .path = path()});
    const Completion plain = world.Answer(Ask(prompt, Policy::kCompute));
    std::mt19937 rng(7);
    for (int i = 0; i < splits; ++i) {
      const int split = static_cast<int>(rng() % (1100 / kChunk + 1));
      SCOPED_TRACE(split);
      world.pool->DropCached();
      Request request = Ask(prompt);
      request.forced_split = split;
      const Completion done = world.Answer(std::move(request));
      ExpectSame(done, plain, path());
      EXPECT_EQ(done.report.tokens_computed, split * kChunk + 1100 % kChunk);
    }
  }
};

TEST_P(ForcedSplitTest, FiftyGiveTheSameBitsAsComputingAll) { Check(WeightFormat::kBf16, 50); }

TEST_P(ForcedSplitTest, SoDoTenWithInt8Weights) {
  if (OnCuda(path())) GTEST_SKIP() << "there are no int8 products on CUDA";
  Check(WeightFormat::kInt8, 10);
}

INSTANTIATE_TEST_SUITE_P(Models, ForcedSplitTest,
                         testing::Combine(testing::Values("tiny", "qwen2.5-0.5b", "qwen3-0.6b",
                                                          "falcon-1b", "falcon-7b", "falcon-40b",
                                                          "demo"),
                                          testing::Values(BestPath(), NumericPath::kBf16Tensor)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
                           return name + (OnCuda(std::get<1>(info.param)) ? "_cuda" : "_cpu");
                         });

}  // namespace
}  // namespace kvcake
