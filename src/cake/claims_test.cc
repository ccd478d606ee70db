#include "cake/claims.h"

#include <gtest/gtest.h>

#include <random>

namespace kvcake {
namespace {

std::vector<bool> Bits(const std::string& text) {
  std::vector<bool> bits;
  for (char c : text) bits.push_back(c == '1');
  return bits;
}

std::vector<int> BackOrder(Claims& claims, int tier) {
  std::vector<int> order;
  while (auto claim = claims.ClaimBack(tier)) order.push_back(claim->first);
  return order;
}

TEST(ClaimsTest, FrontAndBackMeet) {
  Claims claims(6);
  claims.SetLoadable(0, Bits("111111"));
  const Claim front = claims.ClaimFront(4);
  EXPECT_EQ(front.first, 0);
  EXPECT_EQ(front.count, 4);
  EXPECT_EQ(BackOrder(claims, 0), (std::vector<int>{5, 4}));
  claims.Publish(front);
  EXPECT_EQ(claims.first_missing(), 4);
  EXPECT_EQ(claims.ClaimFront(4).count, 0) << "a load owns it";
}

TEST(ClaimsTest, LoadsServeTheSegmentBeforeAHoleFirst) {
  Claims claims(9);
  claims.SetLoadable(0, Bits("111011010"));
  EXPECT_EQ(BackOrder(claims, 0), (std::vector<int>{2, 1, 0, 5, 4, 7}));
}

TEST(ClaimsTest, AStoredPrefixIsLoadedFromItsBack) {
  Claims claims(5);
  claims.SetLoadable(0, Bits("11100"));
  EXPECT_EQ(BackOrder(claims, 0), (std::vector<int>{2, 1, 0}));
  EXPECT_EQ(BackOrder(claims, 1), std::vector<int>{});
}

TEST(ClaimsTest, AChunkThatOnlyAnotherTierHasIsNoHole) {
  Claims claims(4);
  claims.SetLoadable(0, Bits("1001"));
  claims.SetLoadable(1, Bits("0110"));
  EXPECT_EQ(BackOrder(claims, 0), (std::vector<int>{3, 0}));
}

TEST(ClaimsTest, AFailedTierIsNotAskedAgain) {
  Claims claims(2);
  claims.SetLoadable(0, Bits("11"));
  claims.SetLoadable(1, Bits("01"));
  const Claim claim = *claims.ClaimBack(0);
  claims.Fail(claim, 0);
  EXPECT_EQ(claims.state(1), ChunkState::kAbsent);
  EXPECT_EQ(BackOrder(claims, 0), (std::vector<int>{0}));
  EXPECT_EQ(BackOrder(claims, 1), (std::vector<int>{1}));
}

TEST(ClaimsTest, TakingOverMakesTheLoadLate) {
  Claims claims(3);
  claims.SetLoadable(0, Bits("111"));
  const Claim load = *claims.ClaimBack(0);
  std::vector<int> taken;
  const Claim compute = claims.ClaimFront(3, true, &taken);
  EXPECT_EQ(compute.count, 3);
  EXPECT_EQ(taken, std::vector<int>{2});
  EXPECT_FALSE(claims.Valid(load));
  EXPECT_TRUE(claims.Valid(compute));
  claims.Publish(compute);
  EXPECT_TRUE(claims.done());
  EXPECT_FALSE(claims.Valid(compute)) << "a claim ends when it is published";
}

TEST(ClaimsTest, ElsewhereIsAdoptedReturnedOrInherited) {
  Claims claims(3);
  claims.SetLoadable(0, Bits("111"));
  for (int i = 0; i < 3; ++i) claims.MarkElsewhere(i);
  EXPECT_EQ(claims.ClaimFront(1).count, 0);
  EXPECT_FALSE(claims.ClaimBack(0));
  claims.Adopt(0);
  claims.Return(1);
  const Claim inherited = claims.InheritLoad(2);
  EXPECT_EQ(claims.first_missing(), 1);
  const Claim front = claims.ClaimFront(4);
  EXPECT_EQ(front.count, 1);
  EXPECT_GT(front.generation, inherited.generation);
  claims.Publish(inherited);
  claims.Publish(front);
  EXPECT_TRUE(claims.done());
}

// Random steps of both lanes against a model that knows every chunk's one valid claim.
TEST(ClaimsTest, RandomInterleavingsKeepOneOwnerAndEnd) {
  for (int seed = 0; seed < 2000; ++seed) {
    std::mt19937 rng(seed);
    const int n = 1 + rng() % 40;
    Claims claims(n);
    std::vector<bool> has(n);
    for (int t = 0; t < 2; ++t) {
      for (int i = 0; i < n; ++i) has[i] = rng() % 4 != 0;
      claims.SetLoadable(t, has);
    }
    struct Held {
      Claim claim;
      int tier;  // -1: compute
    };
    std::vector<Held> held;
    std::vector<uint32_t> owner(n, 0), last(n, 0);  // generations
    std::vector<bool> resident(n, false);
    const auto own = [&](const Claim& claim) {
      for (int i = claim.first; i < claim.end(); ++i) {
        ASSERT_GT(claim.generation, last[i]) << "generations only grow";
        ASSERT_FALSE(resident[i]);
        owner[i] = last[i] = claim.generation;
      }
    };
    int steps = 0;
    for (; !claims.done(); ++steps) {
      ASSERT_LT(steps, 100 * n + 1000) << "every run ends";
      const int kind = rng() % 4;
      if (kind == 0) {
        const bool computing =
            std::any_of(held.begin(), held.end(), [](const Held& h) { return h.tier < 0; });
        const bool take_over = rng() % 4 == 0;
        if (computing) continue;
        const Claim claim = claims.ClaimFront(1 + rng() % 4, take_over);
        if (claim.count == 0) continue;
        ASSERT_EQ(claim.first,
                  std::find(resident.begin(), resident.end(), false) - resident.begin());
        for (int i = claim.first; i < claim.end(); ++i) ASSERT_TRUE(take_over || owner[i] == 0);
        own(claim);
        held.push_back({claim, -1});
      } else if (kind == 1) {
        const int tier = rng() % 2;
        const auto claim = claims.ClaimBack(tier);
        if (!claim) continue;
        ASSERT_EQ(owner[claim->first], 0u) << "one owner";
        own(*claim);
        held.push_back({*claim, tier});
      } else if (!held.empty()) {
        const size_t at = rng() % held.size();
        const Held h = held[at];
        held.erase(held.begin() + at);
        bool valid = true;
        for (int i = h.claim.first; i < h.claim.end(); ++i) {
          valid = valid && owner[i] == h.claim.generation;
        }
        ASSERT_EQ(claims.Valid(h.claim), valid) << "late exactly when another claim came after";
        if (!valid) continue;
        const bool ok = rng() % 5 != 0;
        for (int i = h.claim.first; i < h.claim.end(); ++i) owner[i] = 0, resident[i] = ok;
        if (ok) {
          claims.Publish(h.claim);
        } else if (h.tier < 0) {
          claims.Release(h.claim);
        } else {
          claims.Fail(h.claim, h.tier);
        }
      }
    }
    EXPECT_EQ(std::count(resident.begin(), resident.end(), true), n);
  }
}

}  // namespace
}  // namespace kvcake
