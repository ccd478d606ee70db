#include "engine/chunk_keeper.h"

#include <gtest/gtest.h>

#include "engine/admission.h"
#include "engine/sequence_testing.h"
#include "store/memory_tier.h"

namespace kvcake {
namespace {

constexpr int kKeptChunk = 16;
constexpr KvLayout kKeptLayout{
    .layers = 1, .kv_heads = 1, .head_dim = 1, .chunk_tokens = kKeptChunk};

class ChunkKeeperTest : public testing::Test {
 protected:
  // With pages for so many tokens, whose KV is in them.
  std::unique_ptr<Sequence> Computed(int tokens) {
    auto sequence = WaitingSequence(1, tokens, 4, 1, kKeptChunk);
    sequence->keys.clear();
    sequence->numeric_path = NumericPath::kF32;
    for (int at = 0; at < tokens; at += kKeptChunk) {
      sequence->table.push_back(std::move(*pool_->Draw()));
    }
    sequence->kv_tokens = tokens;
    return sequence;
  }
  std::vector<bool> Held(const Sequence& sequence) {
    EXPECT_TRUE(writes_.Flush());
    return store_.Residency(sequence.keys);
  }

  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kKeptLayout, 20 * kKeptLayout.page_bytes()).value());
  MemoryTier store_{{.layout = kKeptLayout, .owner_quota_bytes = 1 << 30}};
  WriteBehind writes_{{&store_}, *pool_};
  ChunkKeeper keeper_{*pool_, &writes_};
};

TEST_F(ChunkKeeperTest, FullChunksArePublishedUnderTheirKeys) {
  const auto sequence = Computed(2 * kKeptChunk + 5);
  keeper_.PublishFull(*sequence);
  EXPECT_EQ(sequence->keys, ChunkKeys(sequence->root, sequence->tokens, kKeptChunk));
  ASSERT_EQ(sequence->keys.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const auto page = pool_->Lookup(sequence->keys[i]);
    ASSERT_TRUE(page);
    EXPECT_EQ(page->id(), sequence->table[i].id());
  }
}

TEST_F(ChunkKeeperTest, APromptsChunksAreOfferedOnceItIsDoneWith) {
  const auto sequence = Computed(2 * kKeptChunk + 5);
  sequence->state = Sequence::State::kPrefilling;
  keeper_.PublishFull(*sequence);
  EXPECT_EQ(writes_.Stats().written + writes_.Stats().in_flight(), 0u);
  keeper_.Store(*sequence);
  EXPECT_EQ(Held(*sequence), std::vector<bool>(2, true));
  keeper_.Store(*sequence);
  EXPECT_EQ(sequence->chunks_offered, 2u);
}

TEST_F(ChunkKeeperTest, ChunksAreTheRequestsTenants) {
  const auto anns = Computed(2 * kKeptChunk);
  anns->request.tenant = "ann";
  keeper_.PublishFull(*anns);
  keeper_.Store(*anns);
  EXPECT_EQ(Held(*anns), std::vector<bool>(2, true));
  const auto nobodys = Computed(3 * kKeptChunk);  // one more
  keeper_.PublishFull(*nobodys);
  keeper_.Store(*nobodys);
  EXPECT_EQ(Held(*nobodys), std::vector<bool>(3, true));
  EXPECT_EQ(store_.Owners(),
            (std::vector<OwnedBytes>{{OwnerOf("ann"), 2 * kKeptLayout.page_bytes()}}));
}

TEST_F(ChunkKeeperTest, WhatIsGeneratedIsOfferedWhenItIsFull) {
  const auto sequence = Computed(kKeptChunk);
  sequence->state = Sequence::State::kDecoding;
  keeper_.PublishFull(*sequence);
  EXPECT_EQ(Held(*sequence), std::vector<bool>(1, true));
}

// Until it runs again its pages may be needed for something else.
TEST_F(ChunkKeeperTest, WhatAPreemptedPromptHasComputedIsOffered) {
  Admission admission(*pool_, keeper_, {});
  admission.Add(WaitingSequence(1, 2 * kKeptChunk + 5, 4, 1, kKeptChunk));
  Sequence& sequence = *admission.Admit({}).at(0);
  sequence.state = Sequence::State::kPrefilling;
  for (const ChunkKey& key : sequence.keys) {
    sequence.table.push_back(pool_->Publish(*pool_->Draw(), key, NumericPath::kF32));
  }
  admission.PreemptYoungest();
  EXPECT_EQ(Held(sequence), std::vector<bool>(2, true));
}

TEST_F(ChunkKeeperTest, WhatOthersHaveNotProvenIsPublishedWhenItIsComputedOnceMore) {
  auto sequence = Computed(kKeptChunk);
  const auto keys = ChunkKeys(sequence->root, sequence->tokens, kKeptChunk);
  sequence->unproven = true;
  keeper_.PublishFull(*sequence);
  EXPECT_FALSE(pool_->Contains(keys[0]));
  sequence->ReleasePages();
  sequence->Preempt(kKeptChunk);
  sequence->keys.clear();
  sequence->table.push_back(*pool_->Draw());
  sequence->kv_tokens = kKeptChunk;
  keeper_.PublishFull(*sequence);
  EXPECT_TRUE(pool_->Contains(keys[0]));
}

TEST_F(ChunkKeeperTest, NothingIsOfferedOfARequestThatWantsNothingKept) {
  const auto sequence = Computed(kKeptChunk);
  sequence->request.store = false;
  keeper_.PublishFull(*sequence);
  keeper_.Store(*sequence);
  EXPECT_EQ(Held(*sequence), std::vector<bool>(1, false));
}

TEST_F(ChunkKeeperTest, ASequenceThatMeetsAnotherPathsPageIsMixed) {
  const auto first = Computed(kKeptChunk);
  first->numeric_path = NumericPath::kBf16Dot;
  keeper_.PublishFull(*first);
  const auto second = Computed(kKeptChunk);
  keeper_.PublishFull(*second);
  EXPECT_EQ(second->table[0].id(), first->table[0].id());
  EXPECT_EQ(second->numeric_path, NumericPath::kUnknown);
}

}  // namespace
}  // namespace kvcake
