#include "store/owner_lists.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

std::vector<OwnerLists::Slot> SlotsOf(const OwnerLists& lists, OwnerId owner) {
  std::vector<OwnerLists::Slot> slots;
  for (auto slot = lists.Coldest(owner); slot != OwnerLists::kNone; slot = lists.Warmer(slot)) {
    slots.push_back(slot);
  }
  return slots;
}

TEST(OwnerListsTest, CountsWhatIsWhoseAndForgetsWhoHasNothing) {
  OwnerLists lists(/*quota_bytes=*/20);
  lists.Set(3, kAnn, 10);
  lists.Set(1, kAnn, 10);
  lists.Set(0, kBob, 5);
  lists.Set(7, kNobody, 100);
  EXPECT_EQ(lists.OwnerOf(7), kNobody);
  EXPECT_FALSE(lists.IsOver(kAnn));
  EXPECT_TRUE(lists.IsOver(kAnn, 1));
  EXPECT_FALSE(lists.IsOver(kBob, 15));
  EXPECT_FALSE(lists.IsOver(kNobody, 100)) << "has no quota";
  EXPECT_TRUE(lists.Over().empty());
  lists.Set(3, kNobody, 11);  // of whoever had it
  EXPECT_EQ(lists.Over(), std::vector<OwnerId>{kAnn});
  EXPECT_EQ(lists.OwnerOf(3), kAnn);
  lists.Remove(3);
  EXPECT_TRUE(lists.Over().empty());
  lists.Remove(0);
  EXPECT_EQ(lists.Totals(), (std::vector<OwnedBytes>{{kAnn, 10}}));
}

TEST(OwnerListsTest, RemembersNothingWithoutAQuota) {
  OwnerLists lists(/*quota_bytes=*/0);
  lists.Set(3, kAnn, 10);
  lists.Use(3);
  EXPECT_EQ(lists.OwnerOf(3), kNobody);
  EXPECT_EQ(lists.Coldest(kAnn), OwnerLists::kNone);
  EXPECT_FALSE(lists.IsOver(kAnn, 1000));
  EXPECT_TRUE(lists.Totals().empty());
  lists.Remove(3);
}

// Against a model that is plain lists: random operations, the same answers.
TEST(OwnerListsTest, BehavesAsAListForEachOwnerInTheOrderOfUse) {
  std::mt19937 random(1);
  OwnerLists lists(/*quota_bytes=*/50);
  std::map<OwnerId, std::vector<std::pair<OwnerLists::Slot, uint64_t>>> model;  // coldest first
  for (int step = 0; step < 5000; ++step) {
    const OwnerLists::Slot slot = random() % 20;
    const OwnerId before = lists.OwnerOf(slot);
    auto* own = before == kNobody ? nullptr : &model[before];
    const auto find = [&] {
      return std::ranges::find_if(*own, [&](const auto& held) { return held.first == slot; });
    };
    switch (random() % 3) {
      case 0:
        lists.Remove(slot);
        if (own != nullptr) own->erase(find());
        break;
      case 1:
        lists.Use(slot);
        if (own != nullptr) std::rotate(find(), find() + 1, own->end());
        break;
      default: {
        const OwnerId owner = random() % 4;  // kNobody, too
        const uint64_t bytes = random() % 20;
        lists.Set(slot, owner, bytes);
        if (owner == kNobody || owner == before) {
          if (own != nullptr) find()->second = bytes;
          break;
        }
        if (own != nullptr) own->erase(find());
        model[owner].emplace_back(slot, bytes);
      }
    }
    std::erase_if(model, [](const auto& held) { return held.second.empty(); });
    std::vector<OwnedBytes> totals;
    std::vector<OwnerId> over;
    for (const auto& [owner, held] : model) {
      uint64_t bytes = 0;
      std::vector<OwnerLists::Slot> slots;
      for (const auto& [number, size] : held) bytes += size, slots.push_back(number);
      totals.push_back({owner, bytes});
      if (bytes > 50) over.push_back(owner);
      ASSERT_EQ(SlotsOf(lists, owner), slots);
    }
    auto found = lists.Totals();
    std::ranges::sort(found);
    ASSERT_EQ(found, totals);
    ASSERT_EQ(lists.Over(), over);
  }
}

}  // namespace
}  // namespace kvcake
