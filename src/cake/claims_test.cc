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

// The chunks that the tier can load, from the back; all of them are claimed for it.
std::vector<int> LoadAll(Claims& claims, int tier) {
  std::vector<int> order;
  for (int i = claims.size() - 1; i >= 0; --i) {
    if (claims.Wants(i, tier)) order.push_back(claims.ClaimLoad(i).first);
  }
  return order;
}

TEST(ClaimsTest, FrontAndBackMeet) {
  Claims claims(6);
  claims.SetLoadable(0, Bits("111111"));
  const Claim front = claims.ClaimFront(4);
  EXPECT_EQ(front.first, 0);
  EXPECT_EQ(front.count, 4);
  EXPECT_EQ(LoadAll(claims, 0), (std::vector<int>{5, 4}));
  claims.Publish(front);
  EXPECT_EQ(claims.first_missing(), 4);
  EXPECT_EQ(claims.ClaimFront(4).count, 0) << "a load owns it";
}

TEST(ClaimsTest, CountsWhatIsAbsentByTheTiersThatHaveIt) {
  Claims claims(4);
  EXPECT_EQ(claims.AbsentIn(~0u), 0) << "holes";
  claims.SetLoadable(0, Bits("1001"));
  claims.SetLoadable(1, Bits("0011"));
  EXPECT_EQ(claims.AbsentIn(1), 2);
  EXPECT_EQ(claims.AbsentIn(2), 2);
  EXPECT_EQ(claims.AbsentIn(3), 3) << "both have the last one";
  const Claim load = claims.ClaimLoad(3);
  EXPECT_EQ(claims.AbsentIn(3), 2);
  EXPECT_EQ(claims.loading(), 1);
  claims.MarkElsewhere(1);
  EXPECT_EQ(claims.loading(), 2);
  claims.Publish(load);
  EXPECT_EQ(claims.loading(), 1);
}

// What a plan foresees leaves its claims' revision as it is: chunks go to the lanes and come.
TEST(ClaimsTest, TheRevisionGrowsWithWhatNoPlanForesees) {
  Claims claims(4);
  claims.SetLoadable(0, Bits("1111"));
  uint64_t revision = claims.revision();
  const Claim front = claims.ClaimFront(1), load = claims.ClaimLoad(3);
  claims.Publish(front);
  claims.MarkElsewhere(2);
  claims.Adopt(2);
  EXPECT_EQ(claims.revision(), revision);
  claims.Release(load);
  EXPECT_GT(claims.revision(), revision) << "a chunk is absent again";
  revision = claims.revision();
  claims.SetNotLoadable(3, 0);
  EXPECT_GT(claims.revision(), revision) << "it has become a hole";
  revision = claims.revision();
  claims.AddLoadable(1, 0);
  EXPECT_EQ(claims.revision(), revision) << "that was known";
  claims.AddLoadable(1, 1);
  EXPECT_GT(claims.revision(), revision) << "another tier has it, too";
}

TEST(ClaimsTest, AFailedTierIsNotAskedAgain) {
  Claims claims(2);
  claims.SetLoadable(0, Bits("11"));
  claims.SetLoadable(1, Bits("01"));
  claims.Fail(claims.ClaimLoad(1), 0);
  EXPECT_EQ(claims.state(1), ChunkState::kAbsent);
  EXPECT_EQ(LoadAll(claims, 0), (std::vector<int>{0}));
  EXPECT_EQ(LoadAll(claims, 1), (std::vector<int>{1}));
}

TEST(ClaimsTest, TakingOverMakesTheLoadLate) {
  Claims claims(3);
  claims.SetLoadable(0, Bits("111"));
  const Claim load = claims.ClaimLoad(2);
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
  EXPECT_FALSE(claims.Wants(1, 0));
  claims.Adopt(0);
  claims.Return(1);
  const Claim inherited = claims.InheritLoad(2);
  claims.LoseLoad(2);
  const Claim again = claims.InheritLoad(2);
  EXPECT_FALSE(claims.Valid(inherited)) << "its result is late";
  EXPECT_EQ(claims.first_missing(), 1);
  const Claim front = claims.ClaimFront(4);
  EXPECT_EQ(front.count, 1);
  EXPECT_GT(front.generation, again.generation);
  claims.Publish(again);
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
      for (uint32_t tiers = 0; tiers < 4; ++tiers) {
        int absent = 0, loading = 0;
        for (int i = 0; i < n; ++i) {
          absent += claims.state(i) == ChunkState::kAbsent && (claims.tiers(i) & tiers) != 0;
          loading += claims.state(i) == ChunkState::kLoading;
        }
        ASSERT_EQ(claims.AbsentIn(tiers), absent);
        ASSERT_EQ(claims.loading(), loading);
      }
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
        const int chunk = static_cast<int>(rng() % n);
        if (!claims.Wants(chunk, tier)) continue;
        ASSERT_EQ(owner[chunk], 0u) << "one owner";
        const Claim claim = claims.ClaimLoad(chunk);
        own(claim);
        held.push_back({claim, tier});
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
