// Every family's KV cache through a store on disk: what one engine computed and kept, another
// loads, and goes on to say the same, bit for bit, and what Hugging Face transformers says.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/temp_dir_testing.h"
#include "engine/engine.h"
#include "model/safetensors.h"
#include "model/transformer.h"
#include "ops/paths_testing.h"
#include "store/disk_tier.h"

namespace kvcake {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kChunk = 128;
constexpr int kSlice = 256;

// An engine with empty memory over the store in a directory.
struct World {
  World(const fs::path& dir, const std::string& store_dir, NumericPath path)
      : config(LoadModelConfig(dir).value()),
        pool(PagePool::Create(TransformerModel::LayoutFor(config, kChunk), 4 << 20).value()) {
    const TensorFiles files = TensorFiles::Open(dir).value();
    model = TransformerModel::Create(config, WeightSource::FromFiles(files), *pool, threads,
                                     {.max_batch_tokens = kSlice + 64, .path = path})
                .value();
    DiskTierOptions disk;
    disk.dir = store_dir;
    disk.layout = pool->layout();
    disk.root = model->identity().Root();
    tier = DiskTier::Open(std::move(disk)).value();
    Restorer::Options restore;
    restore.numeric_path = path;
    restorer = NewRestorer(*pool, {tier.get()}, cost, Clock::Real(), restore);
    writes = std::make_unique<WriteBehind>(std::vector<WrittenStore>{tier.get()}, *pool);
    engine = std::make_unique<Engine>(EngineParts{.model = *model,
                                                  .pool = *pool,
                                                  .restorer = *restorer,
                                                  .cost = cost,
                                                  .writes = writes.get()},
                                      EngineOptions{.slice_tokens = kSlice});
  }

  Completion Answer(const json& test, Policy policy) {
    const auto ids = test["ids"].get<std::vector<int32_t>>();
    const auto prompt = test["prompt"].get<size_t>();
    Request request;
    request.prompt.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt));
    request.max_tokens = static_cast<int>(ids.size() - prompt);
    request.logprobs = true;
    request.policy = policy;
    Completion completion = engine->Answer(std::move(request)).value();
    engine->FlushStore();
    return completion;
  }

  ThreadPool threads{2};
  ModelConfig config;
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<TransformerModel> model;
  std::unique_ptr<Tier> tier;
  ComputeCost cost;
  std::unique_ptr<Restorer> restorer;
  std::unique_ptr<WriteBehind> writes;
  std::unique_ptr<Engine> engine;
};

// The golden's tokens were decoded greedily: as far as every choice was clear, the engine made the
// same ones, and its log probabilities are the golden's losses.
void ExpectGolden(const Completion& completion, const json& test, double tolerance) {
  const size_t prompt = test["prompt"].get<size_t>();
  double sum = 0;
  size_t same = 0;
  while (same < completion.tokens.size() &&
         completion.tokens[same] == test["ids"][prompt + same].get<int32_t>()) {
    sum += std::abs(-completion.logprobs[same] - test["losses"][prompt + same - 1].get<double>());
    ++same;
  }
  if (same < completion.tokens.size()) {
    EXPECT_LT(test["greedy"][same].get<int>(), 0) << "a clear choice, made otherwise: " << same;
  }
  if (same > 0) {
    EXPECT_LE(sum / static_cast<double>(same), tolerance);
  }
}

class GoldenRestoreTest : public PathTest {
 protected:
  const TempDir temp_;
  const std::string store_ = temp_.path();
};
KVCAKE_EVERY_PATH(GoldenRestoreTest);

TEST_P(GoldenRestoreTest, EveryFamilySaysTheSameAfterARestoreFromDisk) {
  const double tolerance = Bf16Products(GetParam()) ? 0.03 : 0.01;
  int models = 0;
  for (const auto& entry : fs::directory_iterator(KVCAKE_SOURCE_DIR "/tests/golden/models")) {
    SCOPED_TRACE(entry.path().filename().string());
    ++models;
    std::ifstream file(entry.path() / "golden.json");
    const json golden = json::parse(file);
    ASSERT_EQ(golden["cases"].size(), 5u);
    for (const json& test : golden["cases"]) {
      const int prompt = test["prompt"].get<int>();
      const int stored = prompt / kChunk * kChunk;
      SCOPED_TRACE(prompt);
      const std::string store = store_ + "/" + std::to_string(prompt);
      const Completion first =
          World(entry.path(), store, GetParam()).Answer(test, Policy::kCompute);
      EXPECT_EQ(first.report.tokens_computed, prompt);
      ExpectGolden(first, test, tolerance);
      for (const Policy policy : {Policy::kLoad, Policy::kCake}) {
        if (stored == 0) continue;
        const Completion again = World(entry.path(), store, GetParam()).Answer(test, policy);
        if (policy == Policy::kLoad) {
          EXPECT_EQ(again.report.loaded(), stored);
        }
        EXPECT_EQ(again.report.chunks_failed, 0);
        EXPECT_EQ(again.tokens, first.tokens);
        EXPECT_EQ(again.logprobs, first.logprobs);
      }
    }
  }
  EXPECT_GE(models, 19);
}

}  // namespace
}  // namespace kvcake
