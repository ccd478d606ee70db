#include "store/store_look.h"

#include <gtest/gtest.h>

#include "store/memory_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

// Keeps what it is asked to look for until the test answers.
class AskedTier : public MemoryTier {
 public:
  AskedTier() : MemoryTier({.layout = SmallLayout()}) {}
  bool Look(LookRequest request) override {
    if (answer) {
      request.found(0, *answer);
    } else {
      asked = std::move(request);
    }
    return true;
  }

  std::optional<std::vector<bool>> answer;  // to be given at once
  std::optional<LookRequest> asked;
};

class StoreLookTest : public testing::Test {
 protected:
  StoreLook Look(std::vector<bool> held, Seconds patience) {
    Tier* const stores[] = {&one_, &other_};
    return LookInStores(stores, chain_, std::move(held), patience);
  }

  const std::vector<ChunkKey> chain_ = Chain(4);
  AskedTier one_, other_;
};

TEST_F(StoreLookTest, WhatIsKnownIsNotAskedForAndAnswersAreAddedUp) {
  ASSERT_TRUE(PutChunk(one_, SmallLayout(), chain_[1], chain_[0]));
  one_.answer = {false, true};  // of what is asked for: the third and the fourth
  other_.answer = {false, false};
  const StoreLook look = Look({true, false, false, false}, kPatience);
  EXPECT_EQ(look.held, (std::vector<bool>{true, true, false, true}));
  EXPECT_TRUE(look.complete);
}

TEST_F(StoreLookTest, WithoutPatienceNobodyIsAsked) {
  ASSERT_TRUE(PutChunk(other_, SmallLayout(), chain_[2], chain_[1]));
  const StoreLook look = Look({true, false, false, false}, Seconds(0));
  EXPECT_EQ(look.held, (std::vector<bool>{true, false, true, false}));
  EXPECT_FALSE(one_.asked || other_.asked);
}

TEST_F(StoreLookTest, AStoreThatIsLateIsSaidToBeMissingAndHearsThatItIsNotWanted) {
  one_.answer = {false, true, false, false};
  const StoreLook look = Look(std::vector<bool>(4), Seconds(1e-3));
  EXPECT_EQ(look.held, (std::vector<bool>{false, true, false, false}));
  EXPECT_FALSE(look.complete);
  ASSERT_TRUE(other_.asked);
  EXPECT_EQ(other_.asked->keys, chain_);
  EXPECT_FALSE(other_.asked->found(0, {true, true}));
}

TEST_F(StoreLookTest, AStoreIsAskedForWhatItTookAndMayHaveDropped) {
  MemoryTier knows({.layout = SmallLayout()});
  for (Tier* tier : {static_cast<Tier*>(&one_), static_cast<Tier*>(&knows)}) {
    ASSERT_TRUE(PutChunk(*tier, SmallLayout(), chain_[1], chain_[0]));
  }
  one_.answer = {false, false, true, false};
  Tier* const stores[] = {&one_, &knows};
  EXPECT_EQ(AskStores({stores, 1}, chain_, kPatience).held,
            (std::vector<bool>{false, false, true, false}));
  const StoreLook both = AskStores(stores, chain_, kPatience);
  EXPECT_EQ(both.held, (std::vector<bool>{false, true, true, false}));
  EXPECT_TRUE(both.complete);
  one_.answer.reset();
  EXPECT_FALSE(AskStores(stores, chain_, Seconds(1e-3)).complete);
}

}  // namespace
}  // namespace kvcake
