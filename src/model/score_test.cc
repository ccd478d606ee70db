#include "model/score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace kvcake {
namespace {

constexpr int kVocab = 11;
constexpr int kContext = 100;
constexpr int kBatchMax = 24;

// Says where it was asked: logit v after position p of token t is f(p, t, v).
class FakeModel : public Model {
 public:
  explicit FakeModel(const KvLayout& layout) : layout_(layout) {}
  const KvLayout& layout() const override { return layout_; }
  const KvIdentity& identity() const override { return identity_; }
  NumericPath numeric_path() const override { return NumericPath::kF32; }
  int vocab_size() const override { return kVocab; }
  int max_positions() const override { return kContext; }
  int max_batch_tokens() const override { return kBatchMax; }

  static float Logit(int position, int32_t token, int v) {
    return static_cast<float>(position * 1000 + token * 20 + v);
  }
  Result<std::span<const float>> Forward(std::span<const Slice> batch) override {
    EXPECT_EQ(batch.size(), 1u);
    const Slice& slice = batch[0];
    EXPECT_EQ(slice.logits, Slice::Logits::kAll);
    EXPECT_TRUE(slice.write_kv);
    EXPECT_EQ(slice.start, computed);
    EXPECT_GE(slice.pages.size() * layout_.chunk_tokens, slice.start + slice.tokens.size());
    computed += static_cast<int>(slice.tokens.size());
    largest = std::max(largest, static_cast<int>(slice.tokens.size()));
    if (computed > fail_after) return Fail(ErrorCode::kIo, "the gate is shut");
    logits_.clear();
    for (size_t i = 0; i < slice.tokens.size(); ++i) {
      for (int v = 0; v < kVocab; ++v) {
        logits_.push_back(Logit(slice.start + static_cast<int>(i), slice.tokens[i], v));
      }
    }
    return std::span<const float>(logits_);
  }

  int computed = 0;
  int largest = 0;
  int fail_after = kContext;

 private:
  KvLayout layout_;
  KvIdentity identity_;
  std::vector<float> logits_;
};

class ScoreTest : public testing::Test {
 protected:
  ScoreTest() : model_(layout_) { MakePool(kContext / 16 + 1); }
  void MakePool(int pages) {
    pool_ = PagePool::Create(layout_, pages * layout_.page_bytes()).value();
  }
  static std::vector<int32_t> Tokens(int n) {
    std::mt19937 random(7);
    std::vector<int32_t> tokens(n);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kVocab);
    return tokens;
  }
  // Every token is visited once, in order, with its logits.
  void ExpectVisits(const std::vector<int32_t>& tokens, int slice_tokens) {
    model_.computed = model_.largest = 0;
    int next = 0;
    const Status status =
        VisitLogits(model_, *pool_, tokens, {.slice_tokens = slice_tokens},
                    [&](int position, std::span<const float> logits) {
                      EXPECT_EQ(position, next++);
                      ASSERT_EQ(logits.size(), static_cast<size_t>(kVocab));
                      for (int v = 0; v < kVocab; ++v) {
                        EXPECT_EQ(logits[v], FakeModel::Logit(position, tokens[position], v));
                      }
                    });
    EXPECT_TRUE(status);
    EXPECT_EQ(next, static_cast<int>(tokens.size()));
    EXPECT_LE(model_.largest, std::min(slice_tokens, kBatchMax));
    EXPECT_EQ(pool_->Stats().referenced, 0u);
  }
  Error ExpectRefused(const std::vector<int32_t>& tokens, int slice_tokens = 8) {
    int visits = 0;
    const Status status = VisitLogits(model_, *pool_, tokens, {.slice_tokens = slice_tokens},
                                      [&](int, std::span<const float>) { ++visits; });
    EXPECT_FALSE(status);
    EXPECT_EQ(visits, 0);
    EXPECT_EQ(model_.computed, 0);
    EXPECT_EQ(pool_->Stats().referenced, 0u);
    return status ? Error{} : status.error();
  }

  const KvLayout layout_{.layers = 1, .kv_heads = 1, .head_dim = 16, .chunk_tokens = 16};
  FakeModel model_;
  std::unique_ptr<PagePool> pool_;
};

TEST_F(ScoreTest, VisitsEveryPositionOnceInOrderWhateverTheSlices) {
  for (const int n : {0, 1, 15, 16, 17, kContext}) {
    for (const int slice_tokens : {1, 5, 16, kBatchMax, 512}) {
      SCOPED_TRACE(testing::Message() << n << " tokens in slices of " << slice_tokens);
      ExpectVisits(Tokens(n), slice_tokens);
    }
  }
}

TEST_F(ScoreTest, RefusesBeforeComputing) {
  Error error = ExpectRefused(Tokens(kContext + 1));
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_NE(error.message.find("context of 100"), std::string::npos) << error.message;
  for (const int32_t wrong : {-1, kVocab, std::numeric_limits<int32_t>::max()}) {
    std::vector<int32_t> tokens = Tokens(9);
    tokens[4] = wrong;
    error = ExpectRefused(tokens);
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message.find("token 4 is " + std::to_string(wrong)), std::string::npos);
  }
  EXPECT_EQ(ExpectRefused(Tokens(9), 0).code, ErrorCode::kInvalidArgument);
  MakePool(2);
  error = ExpectRefused(Tokens(33));
  EXPECT_EQ(error.code, ErrorCode::kResourceExhausted);
  EXPECT_NE(error.message.find("3 KV pages"), std::string::npos) << error.message;
  ExpectVisits(Tokens(32), 8);
}

TEST_F(ScoreTest, ChunksThatAreKeptAreNeitherComputedNorDrawn) {
  MakePool(3);
  const PageHandle first = *pool_->Draw(), second = *pool_->Draw();
  const std::vector<PageId> kept = {first.id(), second.id()};
  model_.computed = 32;
  int next = 32;
  EXPECT_TRUE(
      VisitLogits(model_, *pool_, Tokens(48), {.slice_tokens = 10, .kept = kept},
                  [&](int position, std::span<const float>) { EXPECT_EQ(position, next++); }));
  EXPECT_EQ(next, 48);
  EXPECT_EQ(pool_->Stats().referenced, 2u);
}

TEST_F(ScoreTest, PassesOnWhatTheModelFailedWith) {
  model_.fail_after = 20;
  int visits = 0;
  const Status status = VisitLogits(model_, *pool_, Tokens(40), {.slice_tokens = 10},
                                    [&](int, std::span<const float>) { ++visits; });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_EQ(visits, 20);
  EXPECT_EQ(pool_->Stats().referenced, 0u);
}

TEST(NegativeLogLikelihoodTest, IsTheNaturalLogarithmOfSoftmax) {
  EXPECT_NEAR(NegativeLogLikelihood(std::vector<float>(8, 3.5f), 5), std::log(8.0), 1e-12);
  const std::vector<float> logits = {0.5f, -1.0f, 2.0f};
  const double sum = std::exp(0.5) + std::exp(-1.0) + std::exp(2.0);
  for (int32_t token = 0; token < 3; ++token) {
    EXPECT_NEAR(NegativeLogLikelihood(logits, token), std::log(sum) - logits[token], 1e-12);
  }
}

TEST(NegativeLogLikelihoodTest, DoesNotOverflowOrVanish) {
  const std::vector<float> large = {1e30f, 1e30f, -1e30f};
  EXPECT_NEAR(NegativeLogLikelihood(large, 0), std::log(2.0), 1e-12);
  EXPECT_NEAR(NegativeLogLikelihood(large, 2), 2e30, 1e24);
  EXPECT_NEAR(NegativeLogLikelihood(std::vector<float>{-1e4f, -1e4f}, 1), std::log(2.0), 1e-12);
  // In double: the likeliest token's loss is tiny, not zero.
  const double tiny = NegativeLogLikelihood(std::vector<float>{30.0f, 0.0f}, 0);
  EXPECT_NEAR(tiny, std::exp(-30.0), 1e-15);
  EXPECT_GT(tiny, 0);
}

}  // namespace
}  // namespace kvcake
