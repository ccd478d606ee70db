#include "engine/completions.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "engine/sequence_testing.h"

namespace kvcake {
namespace {

constexpr KvLayout kEndedLayout{.layers = 1, .kv_heads = 1, .head_dim = 1, .chunk_tokens = 16};

class CompletionsTest : public testing::Test {
 protected:
  // Runs one with a prompt of one page.
  Sequence& Run(SequenceId id) {
    admission_.Add(WaitingSequence(id, 15, 4, static_cast<int>(id), 16));
    Sequence& sequence = *admission_.Admit(clock_.Now()).at(0);
    sequence.state = Sequence::State::kDecoding;
    return sequence;
  }
  void End(SequenceId id) {
    completions_.Finish(Run(id), FinishReason::kStop);
    admission_.EraseFinished();
  }

  FakeClock clock_;
  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kEndedLayout, 20 * kEndedLayout.page_bytes()).value());
  ChunkKeeper keeper_{*pool_, nullptr};
  Admission admission_{*pool_, keeper_, {.max_sequences = 2, .waiting_max = 1}};
  TenantPages owned_{*pool_};
  Completions completions_{admission_, owned_, clock_};
};

TEST_F(CompletionsTest, ASequenceThatEndsGivesItsPagesBackAtOnce) {
  Sequence& sequence = Run(1);
  sequence.table.push_back(std::move(*pool_->Draw()));
  sequence.tokens.push_back(7);
  sequence.first_token = clock_.Now();
  clock_.Advance(Seconds(2));
  ASSERT_EQ(pool_->Stats().referenced, 1u);
  completions_.Finish(sequence, FinishReason::kLength);
  EXPECT_EQ(pool_->Stats().referenced, 0u);
  EXPECT_EQ(sequence.promised(), 0u);
  EXPECT_EQ(sequence.state, Sequence::State::kFinished);
  const auto completion = completions_.Take(1);
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->finish_reason, FinishReason::kLength);
  EXPECT_EQ(completion->decode_s, 2);
}

TEST_F(CompletionsTest, AResultIsTakenOnce) {
  for (SequenceId id : {1, 2, 3}) End(id);
  EXPECT_TRUE(completions_.contains(2));
  EXPECT_TRUE(completions_.Take(2));
  EXPECT_FALSE(completions_.contains(2));
  EXPECT_FALSE(completions_.Take(2));
  EXPECT_EQ(completions_.TakeAny()->first, 1u);
  EXPECT_EQ(completions_.TakeAny()->first, 3u);
  EXPECT_FALSE(completions_.TakeAny());
}

TEST_F(CompletionsTest, TheOldestThatNobodyTakesIsForgotten) {
  ASSERT_EQ(admission_.sequences_max(), 3u);
  for (SequenceId id : {1, 2, 3, 4}) End(id);
  EXPECT_FALSE(completions_.contains(1));
  for (SequenceId id : {2, 3, 4}) EXPECT_TRUE(completions_.contains(id));
}

}  // namespace
}  // namespace kvcake
