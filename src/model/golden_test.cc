// The forward pass against Hugging Face transformers in float32 on the same rounded weights
// (tools/make_goldens.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "model/config.h"
#include "model/llama.h"
#include "model/safetensors.h"
#include "ops/test_paths.h"

namespace kvcake {
namespace {

using nlohmann::json;

constexpr const char* kModels[] = {"mha_bf16", "gqa_linear_f16", "mqa_llama3_f32",
                                   "head_dim_bf16_sharded", "odd_sizes_bf16"};

struct Rig {
  Rig(const std::string& dir, NumericPath path)
      : config(LoadModelConfig(dir).value()),
        files(TensorFiles::Open(dir).value()),
        workers(2),
        pages(std::move(PagePool::Create(LlamaModel::LayoutFor(config, 128), 4 << 20).value())),
        model(std::move(LlamaModel::Create(config, WeightSource::FromFiles(files), *pages, workers,
                                           {.max_batch_tokens = 1024, .path = path})
                            .value())) {}

  ModelConfig config;
  TensorFiles files;
  ThreadPool workers;
  std::unique_ptr<PagePool> pages;
  std::unique_ptr<LlamaModel> model;
};

double Loss(std::span<const float> logits, int32_t token) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum) - logits[token];
}

// What one run over a case's tokens says, to be compared with the case.
struct Outcome {
  std::vector<double> losses;   // of every token but the first
  std::vector<int32_t> greedy;  // after the prompt and after each token decoded
};

// Computes the prompt in slices of the given sizes, the rest token by token.
Outcome RunCase(Rig& rig, const std::vector<int32_t>& ids, int prompt, std::vector<int> slices) {
  PageTable table;
  std::vector<PageId> pages;
  for (size_t t = 0; t < ids.size(); t += 128) {
    table.push_back(std::move(rig.pages->Draw().value()));
    pages.push_back(table.back().id());
    std::memset(rig.pages->Data(pages.back()), 0xff, rig.pages->layout().page_bytes());
  }
  slices.insert(slices.end(), ids.size() - static_cast<size_t>(prompt), 1);
  Outcome outcome;
  int start = 0;
  for (const int size : slices) {
    const Slice slice{.tokens = std::span(ids).subspan(start, size),
                      .start = start,
                      .pages = pages,
                      .logits = Slice::Logits::kAll};
    const auto logits = rig.model->Forward(std::span(&slice, 1)).value();
    const size_t vocab = static_cast<size_t>(rig.config.vocab_size);
    for (int i = 0; i < size; ++i) {
      const auto row = logits.subspan(i * vocab, vocab);
      const size_t next = static_cast<size_t>(start + i + 1);
      if (next < ids.size()) outcome.losses.push_back(Loss(row, ids[next]));
      if (start + i + 1 >= prompt) {
        outcome.greedy.push_back(
            static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
      }
    }
    start += size;
  }
  return outcome;
}

// Every way to slice a prompt that is tried.
std::vector<std::vector<int>> Slicings(int prompt) {
  std::vector<std::vector<int>> all = {{prompt}};
  if (prompt == 1) return all;
  all.push_back({1, prompt - 1});
  std::vector<int> chunks;
  for (int left = prompt; left > 0; left -= 128) chunks.push_back(std::min(left, 128));
  all.push_back(chunks);
  std::mt19937 random(static_cast<unsigned>(prompt));
  for (int i = 0; i < 3; ++i) {
    std::vector<int> sizes;
    for (int left = prompt; left > 0; left -= sizes.back()) {
      sizes.push_back(1 + static_cast<int>(random() % static_cast<unsigned>(left)));
    }
    all.push_back(sizes);
  }
  return all;
}

using GoldenTest = PathTest;
KVCAKE_EVERY_PATH(GoldenTest);

TEST_P(GoldenTest, AgreesWithTransformers) {
  const double tolerance = GetParam() == NumericPath::kBf16Dot ? 0.03 : 0.01;
  for (const char* name : kModels) {
    const std::string dir = std::string(KVCAKE_SOURCE_DIR) + "/tests/golden/models/" + name;
    Rig rig(dir, GetParam());
    std::ifstream file(dir + "/golden.json");
    const json golden = json::parse(file);
    double worst = 0;
    ASSERT_FALSE(golden["cases"].empty());
    for (const json& test : golden["cases"]) {
      const auto ids = test["ids"].get<std::vector<int32_t>>();
      const auto losses = test["losses"].get<std::vector<double>>();
      const auto greedy = test["greedy"].get<std::vector<int32_t>>();
      const int prompt = test["prompt"].get<int>();
      for (const std::vector<int>& slices : Slicings(prompt)) {
        const Outcome outcome = RunCase(rig, ids, prompt, slices);
        ASSERT_EQ(outcome.losses.size(), losses.size());
        double sum = 0;
        for (size_t i = 0; i < losses.size(); ++i) sum += std::abs(outcome.losses[i] - losses[i]);
        const double mean = sum / static_cast<double>(losses.size());
        EXPECT_LE(mean, tolerance)
            << name << ", prompt of " << prompt << ", " << slices.size() << " slices";
        worst = std::max(worst, mean);
        ASSERT_EQ(outcome.greedy.size(), greedy.size());
        for (size_t i = 0; i < greedy.size(); ++i) {
          if (greedy[i] < 0) continue;  // too close to call
          EXPECT_EQ(outcome.greedy[i], greedy[i]) << name << ", token " << i << " after " << prompt;
        }
      }
    }
    std::printf("%s %s: largest mean difference of a case %.5f (at most %.2f)\n", name,
                NumericPathName(GetParam()), worst, tolerance);
  }
}

}  // namespace
}  // namespace kvcake
