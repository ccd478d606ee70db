// A model that lives on from step to step.
#include <bit>
#include <vector>

#include "model/transformer_testing.h"

namespace kvcake {
namespace {

// A pass that ends half way leaves what it has come to in every buffer.
class FailingGate : public LayerGate {
 public:
  Status AfterKv(int layer) override { return Pass(layer); }
  Status BeforeAttention(int layer) override { return Pass(layer); }

 private:
  static Status Pass(int layer) {
    if (layer == 0) return {};
    return Fail(ErrorCode::kDeadline, "the second layer");
  }
};

// Steps of a model that is used: large ones after small ones and the reverse, of two sequences,
// with every kind of logits.
class UsedModel {
 public:
  UsedModel(const ModelConfig& config, NumericPath path, WeightFormat format)
      : config_(config),
        format_(format),
        rig_(config, path, 2, 32, format),
        fresh_(config, path, 2, 32, format) {
    for (int i = 0; i < 2; ++i) {
      tokens_.push_back(Prompt(i, kTokens));
      pages_.push_back(rig_.Draw(kTokens));
      fresh_pages_.push_back(fresh_.Draw(kTokens));
    }
  }

  // The next rows of each sequence, by the used model and by a fresh one on the pages that others
  // like it have written.
  void Step(int64_t first_rows, int64_t second_rows) {
    SCOPED_TRACE(fmt::format("{} and {} rows", first_rows, second_rows));
    using Logits = Slice::Logits;
    constexpr Logits kKinds[] = {Logits::kAll, Logits::kLast, Logits::kNone};
    const int64_t rows[] = {first_rows, second_rows};
    const std::vector<PageId> ids[] = {IdsOf(pages_[0]), IdsOf(pages_[1])};
    const std::vector<PageId> fresh_ids[] = {IdsOf(fresh_pages_[0]), IdsOf(fresh_pages_[1])};
    std::vector<Slice> batch, same;
    const auto add = [&](int i, Slice slice) {
      slice.pages = ids[i];
      batch.push_back(slice);
      slice.pages = fresh_ids[i];
      same.push_back(slice);
    };
    for (int i = 0; i < 2; ++i) {
      if (rows[i] > 0) add(i, NextOf(i, rows[i], kKinds[(steps_ + i) % 3]));
      if (at_[i] == 0 || steps_ % 2 != i) continue;
      // Its last token again, whose KV is there.
      Slice again = NextOf(i, 1, Logits::kLast);
      --again.start;
      again.tokens = std::span(tokens_[i]).subspan(again.start, 1);
      again.write_kv = false;
      if (steps_ % 3 == 0) again.sampling = {.temperature = 1, .uniform = 0.4};
      add(i, again);
    }
    ++steps_;
    if (first_rows > 1) Break(batch.front());
    const auto fresh = TransformerModel::Create(
        config_, fresh_.weights.Source(), *fresh_.pages, fresh_.workers,
        {.max_batch_tokens = 512, .path = rig_.model->numeric_path(), .weights = format_});
    EXPECT_TRUE(Outcome(*rig_.model, batch, rig_, ids) ==
                Outcome(**fresh, same, fresh_, fresh_ids));
    for (int i = 0; i < 2; ++i) at_[i] += rows[i];
  }

 private:
  static constexpr int64_t kTokens = 1100;  // past the end of a partial

  struct Result {
    std::vector<uint32_t> logits;  // as bits
    std::vector<int32_t> sampled;
    std::vector<uint16_t> kv;
    bool operator==(const Result&) const = default;
  };

  Slice NextOf(int i, int64_t rows, Slice::Logits logits) const {
    return {.tokens = std::span(tokens_[i]).subspan(at_[i], rows),
            .start = static_cast<int>(at_[i]),
            .pages = {},
            .logits = logits};
  }
  void Break(Slice slice) {
    FailingGate gate;
    slice.gate = &gate;
    EXPECT_FALSE(rig_.model->Forward(std::span(&slice, 1)));
  }
  static Result Outcome(TransformerModel& model, const std::vector<Slice>& batch, const Rig& rig,
                        std::span<const std::vector<PageId>> sequences) {
    Result result;
    const std::span<const float> logits = model.Forward(batch).value();
    for (const float logit : logits) result.logits.push_back(std::bit_cast<uint32_t>(logit));
    result.sampled.assign(model.sampled().begin(), model.sampled().end());
    for (const auto& ids : sequences) {
      const auto kv = KvOf(rig, ids, kTokens);
      result.kv.insert(result.kv.end(), kv.begin(), kv.end());
    }
    return result;
  }

  const ModelConfig config_;
  const WeightFormat format_;
  Rig rig_;
  Rig fresh_;  // its pages only
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<PageTable> pages_, fresh_pages_;
  int64_t at_[2] = {0, 0};
  int steps_ = 0;
};

using TransformerReuseTest = PathTest;

TEST_P(TransformerReuseTest, AUsedModelGivesTheBitsOfFreshOnes) {
  ModelConfig qwen = TinyConfig();
  qwen.qk_norm = qwen.qkv_bias = true;
  for (const ModelConfig& config :
       {qwen, TinyFalcon(BlockKind::kParallelTwoNorms, 3, true, true)}) {
    for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kInt8}) {
      UsedModel model(config, GetParam(), format);
      for (const auto& [first, second] : std::vector<std::pair<int, int>>{{500, 0},
                                                                          {1, 0},
                                                                          {0, 400},
                                                                          {1, 1},
                                                                          {300, 100},
                                                                          {1, 1},
                                                                          {1, 1},
                                                                          {219, 3},
                                                                          {1, 1},
                                                                          {0, 500},
                                                                          {3, 40},
                                                                          {1, 1},
                                                                          {1, 0},
                                                                          {0, 12},
                                                                          {40, 1}}) {
        model.Step(first, second);
      }
    }
  }
}

KVCAKE_EVERY_PATH(TransformerReuseTest);

}  // namespace
}  // namespace kvcake
