#include "cake/in_flight_table.h"

#include <gtest/gtest.h>

#include <memory>

#include "cake/fake_engine_testing.h"

namespace kvcake {
namespace {

using testing_util::kLayout;

// Three prompts: two of one document, one of which is the beginning of the other, and a stranger.
class InFlightTableTest : public testing::Test {
 protected:
  InFlightTableTest() {
    for (Board* board : {&whole_, &part_, &stranger_}) {
      board->SetLoadable(0, std::vector<bool>(board->claims().size(), true));
      table_.Add(*board);
    }
  }
  static RestoreRequest Request(int document, int chunks, Policy policy = Policy::kCake) {
    RestoreRequest request;
    request.keys = ChunkKeys(ChunkKey{}, std::vector<int32_t>(chunks, document), 1);
    request.policy = policy;
    return request;
  }
  // The last chunk that `board` may load becomes its own.
  Claim Load(Board& board) {
    int chunk = board.claims().size() - 1;
    while (!board.claims().Wants(chunk, 0)) --chunk;
    const Claim claim = board.claims().ClaimLoad(chunk);
    table_.Claimed(board, claim);
    return claim;
  }

  FakeClock clock_;
  ComputeCost cost_;
  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kLayout, 8 * kLayout.page_bytes()).value());
  const RestoreContext context_{*pool_, cost_, clock_, {}};
  Board whole_{context_, Request(1, 4), 1, 1};
  Board part_{context_, Request(1, 4), 2, 1};
  Board stranger_{context_, Request(2, 4), 3, 1};
  InFlightTable table_;
};

TEST_F(InFlightTableTest, AClaimIsSeenElsewhereByWhoWantsTheChunkUntilItIsGivenUp) {
  const Claim claim = Load(whole_);
  ASSERT_EQ(claim.first, 3);
  EXPECT_EQ(table_.OwnerOf(whole_.key(3)), &whole_);
  EXPECT_EQ(part_.claims().state(3), ChunkState::kElsewhere);
  EXPECT_EQ(stranger_.claims().state(3), ChunkState::kAbsent);
  whole_.claims().Release(claim);
  table_.Disown(whole_, claim);
  EXPECT_EQ(table_.OwnerOf(whole_.key(3)), nullptr);
  EXPECT_EQ(part_.claims().state(3), ChunkState::kAbsent);
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(InFlightTableTest, WhatIsPublishedIsAdoptedByAllWhoWantIt) {
  const Claim claim = Load(whole_);
  const PageHandle page = pool_->Publish(std::move(*pool_->Draw()), whole_.key(3), {});
  whole_.claims().Publish(claim);
  table_.Publish(3, whole_.key(3), page, &whole_);
  EXPECT_EQ(part_.claims().state(3), ChunkState::kResident);
  EXPECT_EQ(part_.pages()[3].id(), page.id());
  EXPECT_EQ(stranger_.claims().state(3), ChunkState::kAbsent);
  EXPECT_FALSE(whole_.pages()[3]) << "the owner sees to itself";
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(InFlightTableTest, CountsTheChunksOfItsBoards) {
  EXPECT_EQ(table_.chunks(), 12);
  table_.Remove(part_);
  EXPECT_EQ(table_.chunks(), 8);
}

TEST_F(InFlightTableTest, AFailedLoadIsTriedByNobodyElse) {
  const Claim claim = Load(whole_);
  table_.FailLoad(whole_, claim, 0);
  EXPECT_EQ(whole_.claims().tiers(3), 0u);
  EXPECT_EQ(part_.claims().tiers(3), 0u);
  EXPECT_EQ(part_.claims().state(3), ChunkState::kAbsent);
  EXPECT_NE(stranger_.claims().tiers(3), 0u);
  EXPECT_NE(whole_.claims().tiers(2), 0u);
}

TEST_F(InFlightTableTest, ALoadPassesToTheNextWhoWantsIt) {
  const Claim claim = Load(whole_);
  table_.Remove(whole_);
  whole_.claims().Release(claim);
  const auto heir = table_.Inherit(3, whole_.key(3));
  ASSERT_TRUE(heir);
  EXPECT_EQ(heir->board, &part_);
  EXPECT_TRUE(part_.claims().Valid(heir->claim));
  EXPECT_EQ(part_.claims().state(3), ChunkState::kLoading);
  EXPECT_EQ(table_.OwnerOf(whole_.key(3)), &part_);
  EXPECT_EQ(table_.Find(1), nullptr);
  EXPECT_EQ(table_.Find(2), &part_);
}

TEST_F(InFlightTableTest, WhoOnlyComputesInheritsNoLoad) {
  Board computes(context_, Request(2, 4, Policy::kCompute), 4, 1);
  table_.Add(computes);
  const Claim claim = Load(stranger_);
  table_.Remove(stranger_);
  stranger_.claims().Release(claim);
  EXPECT_FALSE(table_.Inherit(3, stranger_.key(3)));
}

}  // namespace
}  // namespace kvcake
