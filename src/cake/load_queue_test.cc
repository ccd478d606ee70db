#include "cake/load_queue.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace kvcake {
namespace {

// Tier t has the chunks whose letter in tiers[t] is '1'.
Claims ClaimsOf(const std::vector<std::string>& tiers) {
  Claims claims(static_cast<int>(tiers[0].size()));
  for (size_t t = 0; t < tiers.size(); ++t) {
    for (size_t i = 0; i < tiers[t].size(); ++i) {
      if (tiers[t][i] == '1') claims.AddLoadable(static_cast<int>(i), static_cast<int>(t));
    }
  }
  return claims;
}

// c: to compute; l: to load from any tier that has it; e: either lane's; 0 and 1: from that tier.
Plan PlanOf(const std::string& letters) {
  Plan plan;
  for (const char letter : letters) {
    plan.sides.push_back(letter == 'c'   ? Side::kCompute
                         : letter == 'e' ? Side::kEither
                                         : Side::kLoad);
    plan.tiers.push_back(letter == '0' || letter == '1' ? letter - '0' : -1);
  }
  return plan;
}

std::vector<int> Order(Claims claims, const std::string& plan, int tier) {
  LoadQueue queue(claims, PlanOf(plan), 2);
  std::vector<int> order;
  while (const auto chunk = queue.Next(claims, tier))
    order.push_back(claims.ClaimLoad(*chunk).first);
  return order;
}

using Chunks = std::vector<int>;

TEST(LoadQueueTest, WhatIsBeforeAHoleIsReadFirst) {
  EXPECT_EQ(Order(ClaimsOf({"111011010"}), "eeeeeeeee", 0), (Chunks{2, 1, 0, 5, 4, 7}));
}

TEST(LoadQueueTest, WhatIsBeforeAChunkForComputeIsReadFirst) {
  EXPECT_EQ(Order(ClaimsOf({"1111111"}), "ccllcll", 0), (Chunks{3, 2, 6, 5}));
}

TEST(LoadQueueTest, AStoredPrefixIsReadFromItsBack) {
  EXPECT_EQ(Order(ClaimsOf({"11100"}), "eeeee", 0), (Chunks{2, 1, 0}));
  EXPECT_EQ(Order(ClaimsOf({"11100"}), "eeeee", 1), Chunks{});
}

TEST(LoadQueueTest, AChunkThatOnlyAnotherTierHasIsNoHole) {
  EXPECT_EQ(Order(ClaimsOf({"1001", "0110"}), "llll", 0), (Chunks{3, 0}));
}

TEST(LoadQueueTest, ATierReadsWhatThePlanGivesIt) {
  EXPECT_EQ(Order(ClaimsOf({"1111", "1111"}), "01l0", 0), (Chunks{3, 2, 0}));
  EXPECT_EQ(Order(ClaimsOf({"1111", "1111"}), "01l0", 1), (Chunks{2, 1}));
}

TEST(LoadQueueTest, PassesOverWhatOthersHaveClaimedOrNoTierHasAnyMore) {
  Claims claims = ClaimsOf({"11111"});
  LoadQueue queue(claims, PlanOf("lllll"), 1);
  EXPECT_EQ(queue.Next(claims, 0), 4);
  EXPECT_EQ(queue.Next(claims, 0), 4) << "until it is claimed";
  claims.ClaimLoad(4);
  claims.MarkElsewhere(3);
  claims.SetNotLoadable(2, 0);
  EXPECT_EQ(queue.Next(claims, 0), 1);
}

// The rule, looked for anew each time: the last chunk of the first stretch that has one.
std::optional<int> NextOf(const Claims& claims, const Plan& plan, int tier) {
  std::optional<int> next;
  for (int i = 0; i < claims.size(); ++i) {
    if (claims.state(i) != ChunkState::kAbsent) continue;
    if (claims.IsHole(i) || plan.sides[i] == Side::kCompute) {
      if (next) break;
    } else if (claims.Wants(i, tier) && (plan.tiers[i] < 0 || plan.tiers[i] == tier)) {
      next = i;
    }
  }
  return next;
}

TEST(LoadQueueTest, RandomPlansAreReadAsTheRuleSays) {
  int reads = 0;
  for (int seed = 0; seed < 500; ++seed) {
    std::mt19937 rng(seed);
    const int n = 1 + rng() % 30;
    std::string letters;
    std::vector<std::string> tiers(2);
    for (int i = 0; i < n; ++i) {
      letters += "cle01"[rng() % 5];
      for (std::string& has : tiers) has += rng() % 5 != 0 ? '1' : '0';
    }
    Claims claims = ClaimsOf(tiers);
    if (rng() % 2 == 0) claims.Publish(claims.ClaimFront(1 + rng() % n));
    const Plan plan = PlanOf(letters);
    LoadQueue queue(claims, plan, 2);
    // Compute makes nothing here: where it has, the rest of the stretch is still read before what
    // lies behind it.
    for (int idle = 0; idle < 2;) {
      const int tier = static_cast<int>(rng() % 2);
      const auto chunk = queue.Next(claims, tier);
      ASSERT_EQ(chunk, NextOf(claims, plan, tier)) << "seed " << seed;
      if (!chunk) {
        ++idle;
        continue;
      }
      const Claim claim = claims.ClaimLoad(*chunk);
      if (rng() % 2 == 0) claims.Publish(claim);
      ++reads;
    }
  }
  EXPECT_GT(reads, 1000);
}

}  // namespace
}  // namespace kvcake
