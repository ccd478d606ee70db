#include "bench/work.h"

#include <gtest/gtest.h>

#include "model/synth.h"

namespace kvcake::bench {
namespace {

// Two layers of hidden 64, 4 query heads and 2 KV heads of 16, MLP of 128, 512 tokens tied.
TEST(ModelWorkTest, CountsEveryProductOnce) {
  const ModelWork work(SynthArch("tiny").value());
  const int64_t tail = 64 * 64 + 3 * 64 * 128, layer = 64 * (64 + 2 * 32) + tail, head = 64 * 512;
  EXPECT_EQ(work.layers, 2);
  EXPECT_EQ(work.tail_weights, tail);
  EXPECT_EQ(work.layer_weights, layer);
  EXPECT_EQ(work.head_weights, head);
  EXPECT_EQ(work.TokenProducts(), 2.0 * (2 * layer + head));
  EXPECT_EQ(work.DecodeWeights(1), 2 * layer + head);
  EXPECT_EQ(work.DecodeWeights(8), 2 * layer + head);
  // Three tokens look at 1 + 2 + 3 keys: a product with the key and one with the value each.
  const double attention = 6 * 4 * 16 * 4;
  EXPECT_EQ(work.Prefill(3), 2.0 * (3 * 2 * layer + head) + 2 * attention);
  EXPECT_EQ(work.SliceWithoutLogits(3), 2.0 * 3 * (2 * layer - tail) + attention);
}

TEST(ModelWorkTest, OfExpertsThoseCountThatTokensMeet) {
  ModelConfig config = SynthArch("tiny").value();
  config.experts = {.count = 4, .per_token = 2};
  const ModelWork work(config);
  const int64_t mlp = 3 * 64 * 128, layer = 64 * (64 + 2 * 32) + 64 * 64 + 64 * 4 + 2 * mlp;
  EXPECT_EQ(work.layer_weights, layer);
  const double others = 2 * layer - 2 * 2 * mlp + 64 * 512;
  EXPECT_EQ(work.DecodeWeights(1), others + 2 * 2 * mlp);
  EXPECT_EQ(work.DecodeWeights(2), others + 2 * 3 * mlp) << "half of the others' are the same";
  EXPECT_NEAR(work.DecodeWeights(50), others + 2 * 4 * mlp, 1);
}

TEST(ModelWorkTest, PublishedModelsHaveTheirWeights) {
  for (const char* name : {"smollm2-135m", "llama-3.2-1b", "falcon-7b"}) {
    const ModelConfig config = SynthArch(name).value();
    const ModelWork work(config);
    const double products =
        static_cast<double>(work.layers * work.layer_weights + work.head_weights);
    // The rest is norms and biases.
    EXPECT_LT(products, config.parameters()) << name;
    EXPECT_GT(products, 0.999 * static_cast<double>(config.parameters())) << name;
  }
}

}  // namespace
}  // namespace kvcake::bench
