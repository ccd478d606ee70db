// Steps of a model that are as large as may be, and those that look alike and are not.
#include <utility>
#include <vector>

#include "model/transformer_testing.h"

namespace kvcake {
namespace {

using TransformerStepsTest = PathTest;

// The largest step has room in every buffer, and gives what a larger model's step of its size does.
TEST_P(TransformerStepsTest, TheLargestStepIsAsOthersAre) {
  constexpr int kRows = 48, kSingle = 7;
  ModelConfig config = TinyConfig();
  config.intermediate_size = 128;
  Rig rig(config, GetParam(), 2);
  const auto largest =
      TransformerModel::Create(
          config, rig.weights.Source(), *rig.pages, rig.workers,
          {.max_batch_tokens = kRows, .max_slices = 1 + kSingle, .path = GetParam()})
          .value();
  const auto tokens = Prompt(3, kRows);
  std::vector<PageTable> tables;
  std::vector<std::vector<PageId>> ids;
  for (int i = 0; i <= kSingle; ++i) ids.push_back(IdsOf(tables.emplace_back(rig.Draw(kRows))));
  std::vector<Slice> batch;
  for (int i = 0; i <= kSingle; ++i) {
    const size_t first = i == 0 ? kSingle : i - 1, count = i == 0 ? kRows - kSingle : 1;
    batch.push_back({.tokens = std::span(tokens).subspan(first, count),
                     .pages = ids[i],
                     .logits = Slice::Logits::kAll});
  }
  const auto logits = [&](TransformerModel& model) {
    const auto got = model.Forward(batch).value();
    return std::vector<float>(got.begin(), got.end());
  };
  const std::vector<float> want = logits(*rig.model);
  ASSERT_EQ(want.size(), static_cast<size_t>(kRows * config.vocab_size));
  EXPECT_EQ(logits(*largest), want);
  for (Slice& slice : batch) {
    slice.logits = Slice::Logits::kLast;
    slice.sampling = RowSampling();
  }
  EXPECT_TRUE(logits(*largest).empty());
  EXPECT_EQ(largest->sampled().size(), batch.size());
}

// Steps of nearly as many rows, of which some are sampled and some give their logits, or nothing:
// where they are replayed, each is its own. Attention has as many tasks for ten rows as for nine.
TEST_P(TransformerStepsTest, StepsThatLookAlikeAreToldApart) {
  constexpr int kSequences = 10, kKinds = 5, kSteps = 4 * kKinds;
  struct Outcome {
    std::vector<float> logits;
    std::vector<int32_t> sampled;
    bool operator==(const Outcome&) const = default;
  };
  const auto outcomes = [](bool enforce_eager) {
    Rig rig(TinyConfig(), GetParam(), 2, 32, WeightFormat::kBf16, enforce_eager);
    std::vector<PageTable> tables;
    std::vector<std::vector<PageId>> ids;
    std::vector<std::vector<int32_t>> tokens;
    for (int i = 0; i < kSequences; ++i) {
      ids.push_back(IdsOf(tables.emplace_back(rig.Draw(kSteps))));
      tokens.push_back(Prompt(i, kSteps));
    }
    std::vector<int> at(kSequences);
    std::vector<Outcome> all;
    for (int step = 0; step < kSteps; ++step) {
      const int kind = step % kKinds, rows = kind == 0 ? 9 : 10, sampled_rows = kind == 3 ? 2 : 0;
      std::vector<Slice> batch;
      for (int i = 0; i < rows; ++i) {
        Slice slice{.tokens = std::span(tokens[i]).subspan(at[i], 1),
                    .start = at[i],
                    .pages = ids[i],
                    .logits = Slice::Logits::kLast};
        if (i < sampled_rows) slice.sampling = {.temperature = 1, .uniform = 0.3};
        if (kind == 1 && i == 5) slice.logits = Slice::Logits::kNone;
        if (kind == 4 && i == 4) slice.sampling = RowSampling();
        batch.push_back(slice);
        ++at[i];
      }
      const auto logits = rig.model->Forward(batch).value();
      const auto sampled = rig.model->sampled();
      all.push_back({{logits.begin(), logits.end()}, {sampled.begin(), sampled.end()}});
    }
    if (OnCuda(GetParam())) {
      EXPECT_EQ(rig.model->graph_launches(), enforce_eager ? 0u : 3u * kKinds);
    }
    return all;
  };
  EXPECT_TRUE(outcomes(false) == outcomes(true));
}

// A sequence whose logits nobody wants grows past the end of a partial.
TEST_P(TransformerStepsTest, WhatAttentionHasToDoTellsStepsApart) {
  constexpr int kFirst = kAttentionPartial - 4, kSteps = 8, kEnd = kFirst + kSteps;
  const auto outcome = [](bool enforce_eager) {
    Rig rig(TinyConfig(), GetParam(), 2, 32, WeightFormat::kBf16, enforce_eager);
    const PageTable far = rig.Draw(kEnd), near = rig.Draw(kSteps);
    const auto far_ids = IdsOf(far), near_ids = IdsOf(near);
    const std::vector<std::byte> zeros(rig.pages->layout().page_bytes());
    for (const PageId page : far_ids) WritePage(GetParam(), *rig.pages, page, zeros);
    const auto tokens = Prompt(5, kSteps);
    std::vector<float> logits;
    for (int step = 0; step < kSteps; ++step) {
      const auto token = std::span(tokens).subspan(step, 1);
      const std::vector<Slice> batch = {
          {.tokens = token, .start = kFirst + step, .pages = far_ids},
          {.tokens = token, .start = step, .pages = near_ids, .logits = Slice::Logits::kLast}};
      const auto got = rig.model->Forward(batch).value();
      logits.insert(logits.end(), got.begin(), got.end());
    }
    return std::pair(logits, KvOf(rig, far_ids, kEnd));
  };
  EXPECT_TRUE(outcome(false) == outcome(true));
}

class CountingGate : public LayerGate {
 public:
  Status AfterKv(int) override { return ++calls_, Status(); }
  Status BeforeAttention(int) override { return ++calls_, Status(); }
  int calls() const { return calls_; }

 private:
  int calls_ = 0;
};

// A rank's part may be a single token, prompt after prompt: the others wait for it each time.
TEST_P(TransformerStepsTest, AGateIsAskedInEveryStepOfOneToken) {
  Rig rig(TinyConfig(), GetParam(), 1);
  const auto tokens = Prompt(4, 1);
  const PageTable table = rig.Draw(1);
  const auto ids = IdsOf(table);
  for (int step = 0; step < 4; ++step) {
    CountingGate gate;
    const Slice slice{
        .tokens = tokens, .pages = ids, .logits = Slice::Logits::kLast, .gate = &gate};
    ASSERT_TRUE(rig.model->Forward(std::span(&slice, 1)));
    EXPECT_EQ(gate.calls(), 2 * TinyConfig().layers) << step;
  }
}

KVCAKE_EVERY_PATH_AND_CUDA(TransformerStepsTest);

}  // namespace
}  // namespace kvcake
