// Mixtures of experts: what of them is not what it is in other models.
#include <gmock/gmock.h>

#include "model/transformer_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

ModelConfig TinyMixture() {
  for (const auto& [name, config] : TinyZoo()) {
    if (config.experts.count > 0) return config;
  }
  return {};
}

// On a machine without a device, too.
TEST(TransformerExpertsTest, CudaRunsNone) {
  const ModelConfig config = TinyMixture();
  RandomWeights weights(config);
  ThreadPool workers(1);
  const auto pages = PagePool::Create(TransformerModel::LayoutFor(config, 32), 4 << 20).value();
  const auto model = TransformerModel::Create(config, weights.Source(), *pages, workers,
                                              {.path = NumericPath::kBf16Tensor});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(model.error().message, HasSubstr("--backend cuda runs no mixtures of experts"));
}

// Rounded further, it would send tokens to others.
TEST(TransformerExpertsTest, RoutersAreNotRoundedToInt8) {
  const ModelConfig config = TinyMixture();
  RandomWeights weights(config);
  ThreadPool workers(1);
  const auto loaded =
      LoadWeights(Compute(workers), config, weights.Source(), WeightFormat::kInt8).value();
  for (const LayerWeights& layer : loaded.layers) {
    EXPECT_EQ(layer.router.format(), WeightFormat::kBf16);
    EXPECT_EQ(layer.router.n(), config.experts.count);
    ASSERT_EQ(std::ssize(layer.mlps), config.experts.count);
    for (const MlpWeights& mlp : layer.mlps) EXPECT_EQ(mlp.down.format(), WeightFormat::kInt8);
  }
}

TEST(TransformerExpertsTest, AnExpertThatIsMissingIsNamed) {
  const ModelConfig config = TinyMixture();
  RandomWeights weights(config);
  weights.tensors().erase("model.layers.1.mlp.experts.7.up_proj.weight");
  const Status status = CheckWeights(config, weights.Source());
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("model.layers.1.mlp.experts.7.up_proj.weight"));
}

}  // namespace
}  // namespace kvcake
