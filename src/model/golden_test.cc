// Every family's forward pass against Hugging Face transformers in float32 on the same files
// (tools/make_goldens.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "base/source_dir_testing.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/score.h"
#include "model/transformer.h"
#include "ops/paths_testing.h"

namespace kvcake {
namespace {

using nlohmann::json;

constexpr int kChunk = 128;

std::filesystem::path Goldens() { return SourceDir() + "/tests/golden/models"; }

std::vector<std::filesystem::path> GoldenDirs() {
  std::vector<std::filesystem::path> dirs;
  for (const auto& entry : std::filesystem::directory_iterator(Goldens())) {
    dirs.push_back(entry.path());
  }
  std::sort(dirs.begin(), dirs.end());
  return dirs;
}

struct GoldenRig {
  GoldenRig(const std::string& dir, NumericPath path)
      : config(LoadModelConfig(dir).value()),
        files(TensorFiles::Open(dir).value()),
        workers(2),
        pages(PagePool::Create(TransformerModel::LayoutFor(config, kChunk), 4 << 20,
                               PageMemoryOf(path).value())
                  .value()),
        model(TransformerModel::Create(config, WeightSource::FromFiles(files), *pages, workers,
                                       {.max_batch_tokens = 1024, .path = path})
                  .value()) {}

  ModelConfig config;
  TensorFiles files;
  ThreadPool workers;
  std::unique_ptr<PagePool> pages;
  std::unique_ptr<Model> model;
};

// The logits of every position, with the tokens computed in slices of the given sizes.
std::vector<float> LogitsInSlices(GoldenRig& rig, std::span<const int32_t> ids,
                                  const std::vector<int>& sizes) {
  PageTable table;
  std::vector<PageId> pages;
  for (size_t t = 0; t < ids.size(); t += kChunk) {
    table.push_back(std::move(rig.pages->Draw().value()));
    pages.push_back(table.back().id());
    SpoilPage(rig.model->numeric_path(), *rig.pages, pages.back());
  }
  std::vector<float> all;
  int start = 0;
  for (const int size : sizes) {
    const Slice slice{.tokens = ids.subspan(start, size),
                      .start = start,
                      .pages = pages,
                      .logits = Slice::Logits::kAll};
    const auto logits = rig.model->Forward(std::span(&slice, 1)).value();
    all.insert(all.end(), logits.begin(), logits.end());
    start += size;
  }
  return all;
}

// Ways to compute `tokens` of which the first `prompt` are known at once: whole, in two, chunk by
// chunk, at random, with what follows the prompt decoded token by token.
std::vector<std::vector<int>> Slicings(int prompt, int tokens) {
  std::vector<std::vector<int>> all = {{prompt}};
  if (prompt > 1) {
    all.push_back({1, prompt - 1});
    std::vector<int> chunks;
    for (int left = prompt; left > 0; left -= kChunk) chunks.push_back(std::min(left, kChunk));
    all.push_back(chunks);
    std::mt19937 random(static_cast<unsigned>(prompt));
    for (int i = 0; i < 3; ++i) {
      std::vector<int> sizes;
      for (int left = prompt; left > 0; left -= sizes.back()) {
        sizes.push_back(1 + static_cast<int>(random() % static_cast<unsigned>(left)));
      }
      all.push_back(sizes);
    }
  }
  for (auto& sizes : all) sizes.insert(sizes.end(), static_cast<size_t>(tokens - prompt), 1);
  return all;
}

// |difference| of the losses of every token but the first.
std::vector<double> LossDifferences(std::span<const float> logits, const json& test) {
  const auto ids = test["ids"].get<std::vector<int32_t>>();
  const auto losses = test["losses"].get<std::vector<double>>();
  const size_t vocab = logits.size() / ids.size();
  std::vector<double> differences;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const double loss = NegativeLogLikelihood(logits.subspan(i * vocab, vocab), ids[i + 1]);
    differences.push_back(std::abs(loss - losses[i]));
  }
  return differences;
}

// The likeliest token after the prompt and after each token decoded; -1 in the golden where
// transformers' own lead is too small to tell.
void ExpectGreedy(std::span<const float> logits, const json& test) {
  const auto greedy = test["greedy"].get<std::vector<int32_t>>();
  const size_t vocab = logits.size() / test["ids"].size();
  const size_t first = test["prompt"].get<size_t>() - 1;
  ASSERT_EQ(first + greedy.size(), test["ids"].size());
  for (size_t i = 0; i < greedy.size(); ++i) {
    const auto row = logits.subspan((first + i) * vocab, vocab);
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    if (greedy[i] >= 0) {
      EXPECT_EQ(best, greedy[i]) << "token " << i << " after the prompt";
    }
  }
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

using GoldenTest = PathTest;
KVCAKE_EVERY_PATH_AND_CUDA(GoldenTest);

// Hugging Face has written them.
TEST(GoldenWeightsTest, NoTensorIsLeftOver) {
  for (const std::string dir : GoldenDirs()) {
    const auto files = TensorFiles::Open(dir).value();
    const auto unused = UnusedTensors(LoadModelConfig(dir).value(), files);
    EXPECT_EQ(unused, std::vector<std::string>()) << dir;
  }
}

TEST_P(GoldenTest, EveryFamilyAgreesWithTransformers) {
  const double tolerance = Bf16Products(GetParam()) ? 0.03 : 0.01;
  const auto dirs = GoldenDirs();
  ASSERT_GE(dirs.size(), 24u);
  for (const auto& dir : dirs) {
    SCOPED_TRACE(dir.filename().string());
    if (OnCuda(GetParam()) && LoadModelConfig(dir)->experts.count > 0) continue;
    GoldenRig rig(dir, GetParam());
    std::ifstream file(dir / "golden.json");
    const json golden = json::parse(file);
    ASSERT_EQ(golden["cases"].size(), 5u);
    double worst = 0;
    std::vector<double> all;
    for (const json& test : golden["cases"]) {
      const auto ids = test["ids"].get<std::vector<int32_t>>();
      const int prompt = test["prompt"].get<int>(), tokens = static_cast<int>(ids.size());
      SCOPED_TRACE(prompt);
      const auto slicings = Slicings(prompt, tokens);
      const std::vector<float> logits = LogitsInSlices(rig, ids, slicings[0]);
      ASSERT_EQ(test["losses"].size() + 1, ids.size());
      const std::vector<double> differences = LossDifferences(logits, test);
      EXPECT_LE(Mean(differences), tolerance);
      worst = std::max(worst, Mean(differences));
      all.insert(all.end(), differences.begin(), differences.end());
      ExpectGreedy(logits, test);
      if (OnCuda(GetParam())) {  // whose products are the same up to rounding
        for (const auto& slicing : slicings) {
          const auto again = LogitsInSlices(rig, ids, slicing);
          EXPECT_LE(Mean(LossDifferences(again, test)), tolerance);
          ExpectGreedy(again, test);
        }
        continue;
      }
      for (size_t i = 1; i < slicings.size(); ++i) {
        EXPECT_TRUE(LogitsInSlices(rig, ids, slicings[i]) == logits) << "slicing " << i;
      }
      EXPECT_TRUE(LogitsInSlices(rig, ids, {tokens}) == logits) << "decode as prefill";
    }
    std::printf("%-26s %-9s loss difference: mean %.5f, of a case at most %.5f, of a token %.5f\n",
                dir.filename().c_str(), NumericPathName(GetParam()), Mean(all), worst,
                *std::max_element(all.begin(), all.end()));
  }
}

TEST_P(GoldenTest, ScoringGivesTheSameBitsForEverySliceSize) {
  if (OnCuda(GetParam())) GTEST_SKIP() << "products on CUDA are the same up to rounding";
  for (const char* name : {"llama31_f32_sharded", "falcon_rw_bf16", "falcon_40b_bf16_sharded"}) {
    const auto dir = Goldens() / name;
    GoldenRig rig(dir, GetParam());
    std::ifstream file(dir / "golden.json");
    const auto ids = json::parse(file)["cases"].back()["ids"].get<std::vector<int32_t>>();
    const auto score = [&](int slice_tokens) {
      std::vector<float> all;
      EXPECT_TRUE(VisitLogits(*rig.model, *rig.pages, ids, {.slice_tokens = slice_tokens},
                              [&](int, std::span<const float> logits) {
                                all.insert(all.end(), logits.begin(), logits.end());
                              }));
      return all;
    };
    const std::vector<float> whole = score(1024);
    ASSERT_EQ(whole.size(), ids.size() * static_cast<size_t>(rig.config.vocab_size));
    for (const int slice_tokens : {1, 7, 127, 128, 129, 512}) {
      EXPECT_TRUE(score(slice_tokens) == whole) << name << ", slices of " << slice_tokens;
    }
  }
}

}  // namespace
}  // namespace kvcake
