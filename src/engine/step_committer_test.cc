// Commits of steps whose parts are made by hand, of a model that only says what it is.
#include "engine/step_committer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/sequence_testing.h"

namespace kvcake {
namespace {

constexpr int kCommitChunk = 16;
constexpr KvLayout kCommitLayout{
    .layers = 1, .kv_heads = 1, .head_dim = 1, .chunk_tokens = kCommitChunk};

class NamedModel : public Model {
 public:
  const KvLayout& layout() const override { return kCommitLayout; }
  const KvIdentity& identity() const override { return identity_; }
  NumericPath numeric_path() const override { return NumericPath::kF32; }
  int vocab_size() const override { return 1; }
  int max_positions() const override { return 1024; }
  int max_batch_tokens() const override { return 1024; }
  Result<std::span<const float>> Forward(std::span<const Slice>) override {
    return Fail(ErrorCode::kInvalidArgument, "nobody asks it");
  }

 private:
  KvIdentity identity_;
};

class StepCommitterTest : public testing::Test {
 protected:
  StepPart Prefills(int start, int count, int prompt_tokens = 1000) {
    Sequence& sequence = *sequences_.emplace_back(
        WaitingSequence(sequences_.size() + 1, prompt_tokens, 4, 1, kCommitChunk));
    sequence.state = Sequence::State::kPrefilling;
    sequence.prefill_tokens = prompt_tokens;
    return {.sequence = &sequence, .start = start, .count = count};
  }
  StepPart Decodes() {
    StepPart part = Prefills(9, 1, 10);
    part.sequence->state = Sequence::State::kDecoding;
    return part;
  }
  // How many slices it has learnt from.
  int Learnt(StepPlan plan, double took_s = 0.5) {
    const int before = cost_.fit().samples;
    int rows = 0;
    for (const StepPart& part : plan.parts) rows += part.logit_rows();
    const std::vector<float> logits(rows);
    committer_.Commit(plan, {.took = Seconds(took_s), .logits = logits});
    return cost_.fit().samples - before;
  }

  FakeClock clock_;
  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kCommitLayout, 20 * kCommitLayout.page_bytes()).value());
  ChunkKeeper keeper_{*pool_, nullptr};
  Admission admission_{*pool_, keeper_, {}};
  TenantPages owned_{*pool_};
  Completions completions_{admission_, owned_, clock_};
  NamedModel model_;
  ComputeCost cost_;
  StepCommitter committer_{model_, cost_, keeper_, completions_, clock_};
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

TEST_F(StepCommitterTest, LearnsFromASliceOfOnePrompt) {
  EXPECT_EQ(Learnt({.parts = {Prefills(100, 50)}}), 1);
  EXPECT_NEAR(cost_.fit().SecondsFor(100, 50), 0.5, 1e-9);
  EXPECT_EQ(Learnt({.parts = {Prefills(0, 50), Prefills(0, 20)}}), 0) << "of two, neither's";
  EXPECT_EQ(Learnt({.parts = {Prefills(0, 50)}, .shared_at = 3}), 0);
  EXPECT_EQ(Learnt({.parts = {Decodes()}}), 0);
  StepPart chained = Prefills(0, 50);
  chained.chained = true;
  EXPECT_EQ(Learnt({.parts = {chained}}), 0);
  const StepPart scored = Prefills(0, 50);
  scored.sequence->request.prompt_logprobs = true;
  std::ranges::fill(scored.sequence->tokens, 0);  // the model's only one
  EXPECT_EQ(Learnt({.parts = {scored}}), 0) << "all the logits took their time";
}

// Some servers always decode.
TEST_F(StepCommitterTest, LearnsFromASliceBesideAnswers) {
  const StepPart a = Decodes(), b = Decodes();
  EXPECT_EQ(Learnt({.parts = {a, b, Prefills(0, 48)}}), 1);
  EXPECT_NEAR(cost_.fit().SecondsFor(0, 50), 0.5, 1e-9) << "each token is one of the slice";
  EXPECT_EQ(Learnt({.parts = {a, b, Prefills(0, 1)}}, 0.03), 0) << "the answers' step";
  EXPECT_EQ(Learnt({.parts = {a, Prefills(0, 48), Prefills(0, 9)}}), 0);
}

TEST_F(StepCommitterTest, KnowsWhenAPromptCameFurther) {
  const StepPart part = Prefills(0, 48);
  clock_.Advance(Seconds(7));
  Learnt({.parts = {part}});
  EXPECT_EQ(part.sequence->progressed, clock_.Now());
  EXPECT_EQ(part.sequence->kv_tokens, 48);
}

}  // namespace
}  // namespace kvcake
