#include "store/catalogue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "io/file_system.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

// Against a model that is a plain list: random operations, the same answers.
TEST(CatalogueTest, BehavesAsAListInTheOrderOfUse) {
  std::mt19937 random(1);
  Catalogue catalogue;
  std::vector<CatalogueEntry> model;  // coldest first
  const auto keys = Chain(20);
  const auto find = [&](const ChunkId& id) {
    return std::find_if(model.begin(), model.end(), [&](auto& e) { return e.id == id; });
  };
  for (int step = 0; step < 5000; ++step) {
    const ChunkId id{random() % 2 ? Root() : keys[random() % 5], keys[random() % keys.size()]};
    auto it = find(id);
    EXPECT_EQ(catalogue.Contains(id), it != model.end());
    const int64_t now = step;
    if (random() % 3 == 0) {
      EXPECT_EQ(catalogue.Remove(id), it != model.end());
      if (it != model.end()) model.erase(it);
    } else if (random() % 2 == 0) {
      const bool touch = it != model.end() && now - it->mtime_s >= 100;
      EXPECT_EQ(catalogue.Use(id, now, 100), touch);
      if (it != model.end()) {
        if (touch) it->mtime_s = now;
        std::rotate(it, it + 1, model.end());
      }
    } else {
      const CatalogueEntry entry{id, random() % 1000, now};
      catalogue.Add(entry);
      if (it != model.end()) model.erase(it);
      model.push_back(entry);
    }
    uint64_t bytes = 0, root_bytes = 0, root_files = 0;
    for (const CatalogueEntry& entry : model) {
      bytes += entry.bytes;
      if (entry.id.root == Root()) root_bytes += entry.bytes, ++root_files;
    }
    ASSERT_EQ(catalogue.bytes(), bytes);
    ASSERT_EQ(catalogue.Totals(Root()), std::pair(root_files, root_bytes));
    ASSERT_EQ(catalogue.Coldest().has_value(), !model.empty());
    if (model.empty()) continue;
    ASSERT_EQ(catalogue.Coldest()->id, model.front().id);
  }
}

TEST(CatalogueTest, AScanForgetsWhatIsGoneButNotWhatCameMeanwhile) {
  Catalogue catalogue;
  const auto keys = Chain(4);
  catalogue.Add({{Root(), keys[0]}, 10, 1});
  catalogue.Add({{Root(), keys[1]}, 10, 2});
  catalogue.BeginScan();
  catalogue.Add({{Root(), keys[3]}, 7, 9});
  catalogue.Add({{Root(), keys[2]}, 10, 3});  // by another thread while the scan runs
  catalogue.Add({{Root(), keys[1]}, 10, 2});
  catalogue.EndScan(/*complete=*/true);
  EXPECT_FALSE(catalogue.Contains({Root(), keys[0]}));
  for (int i = 1; i < 4; ++i) EXPECT_TRUE(catalogue.Contains({Root(), keys[i]})) << i;
  EXPECT_EQ(catalogue.bytes(), 27u);
  // What was new is ordered by its time, behind what was known.
  std::vector<ChunkKey> order;
  while (auto coldest = catalogue.Coldest()) {
    order.push_back(coldest->id.key);
    catalogue.Remove(coldest->id);
  }
  EXPECT_EQ(order, (std::vector<ChunkKey>{keys[1], keys[2], keys[3]}));
}

TEST(CatalogueTest, AnIncompleteScanForgetsNothing) {
  Catalogue catalogue;
  const auto keys = Chain(2);
  catalogue.Add({{Root(), keys[0]}, 10, 1});
  catalogue.BeginScan();
  catalogue.Add({{Root(), keys[1]}, 10, 1});
  catalogue.EndScan(/*complete=*/false);
  EXPECT_TRUE(catalogue.Contains({Root(), keys[0]}));
  EXPECT_EQ(catalogue.Totals(Root()).first, 2u);
}

TEST(CatalogueTest, AScanOfWhatIsKnownChangesNoOrderAndSetsNoTimeBack) {
  Catalogue catalogue;
  const auto keys = Chain(2);
  for (const ChunkKey& key : keys) catalogue.Add({{Root(), key}, 10, 5});
  ASSERT_TRUE(catalogue.Use({Root(), keys[0]}, 1000, 600)) << "its file is about to be touched";
  catalogue.BeginScan();
  for (const ChunkKey& key : keys) catalogue.Add({{Root(), key}, 10, 5});
  catalogue.EndScan(/*complete=*/true);
  EXPECT_EQ(catalogue.Coldest()->id.key, keys[1]);
  EXPECT_FALSE(catalogue.Use({Root(), keys[0]}, 1001, 600)) << "nor is it touched again";
}

TEST(CatalogueTest, OwnersHaveTheirFilesInTheOrderOfUseToo) {
  Catalogue catalogue(/*owner_quota_bytes=*/15);
  const auto keys = Chain(5);
  const auto id = [&](size_t i) { return ChunkId{i == 1 ? keys[0] : Root(), keys[i]}; };
  const auto coldest = [&] { return catalogue.ColdestOf(kAnn)->id; };
  catalogue.BeginScan();
  catalogue.Add({id(0), 10, 9, kAnn});
  catalogue.Add({id(1), 10, 3, kAnn});  // of another root
  catalogue.Add({id(2), 10, 1, kBob});
  catalogue.Add({id(3), 10, 1});
  catalogue.EndScan(/*complete=*/true);
  EXPECT_EQ(catalogue.OverQuota(), std::vector<OwnerId>{kAnn});
  EXPECT_FALSE(catalogue.IsOverQuota(kBob, 5));
  EXPECT_TRUE(catalogue.IsOverQuota(kBob, 6));
  EXPECT_EQ(coldest(), id(1)) << "by its time";
  EXPECT_EQ(catalogue.ColdestOf(kAnn)->owner, kAnn);
  catalogue.Postpone(id(1));
  EXPECT_EQ(coldest(), id(0));
  catalogue.Use(id(0), 10, 100);
  EXPECT_EQ(coldest(), id(1));
  catalogue.Add({id(1), 10, 11});  // renewed by a scan, which does not look whose it is again
  EXPECT_EQ(coldest(), id(0));
  EXPECT_TRUE(catalogue.Remove(id(0)));
  EXPECT_EQ(coldest(), id(1));
  EXPECT_TRUE(catalogue.OverQuota().empty());
  EXPECT_TRUE(catalogue.Remove(id(1)));
  EXPECT_FALSE(catalogue.ColdestOf(kAnn));
  EXPECT_EQ(catalogue.Owners(), (std::vector<OwnedBytes>{{kBob, 10}}));
  catalogue.Add({id(4), 10, 1, kAnn});  // in a slot that was another's
  EXPECT_EQ(coldest(), id(4));
}

TEST(CatalogueTest, AUseRenewsATimeThatIsAhead) {
  Catalogue catalogue;
  const ChunkId id{Root(), Chain(1)[0]};
  const int64_t now_s = UnixSeconds();
  catalogue.Add({id, 10, now_s + 5000});
  EXPECT_FALSE(catalogue.Use(id, now_s + 4950, 600)) << "clocks differ a little";
  EXPECT_FALSE(catalogue.Use(id, 5, 600)) << "this clock is what is wrong";
  EXPECT_TRUE(catalogue.Use(id, now_s, 600));
  EXPECT_EQ(catalogue.Coldest()->mtime_s, now_s);
  EXPECT_FALSE(catalogue.Use(id, now_s + 100, 600));
}

// Keys that collide in the index, added and removed in every order: none is lost, none stays.
TEST(CatalogueTest, CollidingKeysAreToldApart) {
  std::mt19937 random(2);
  Catalogue catalogue;
  std::set<std::pair<int, int>> model;
  const ChunkKey roots[] = {Root(), Chain(1)[0]};
  for (int step = 0; step < 20000; ++step) {
    const int which = static_cast<int>(random() % 2), n = static_cast<int>(random() % 200);
    ChunkKey key;  // homes 60 to 63, so that runs wrap around the end of the index
    key.digest[0] = static_cast<uint8_t>(n);
    key.digest[8] = static_cast<uint8_t>(0xfc | n % 4);
    std::fill(key.digest.begin() + 9, key.digest.begin() + 16, 0xff);
    const ChunkId id{roots[which], key};
    if (random() % 2 != 0) {
      catalogue.Add({id, 1, 1});
      model.emplace(which, n);
    } else {
      EXPECT_EQ(catalogue.Remove(id), model.erase({which, n}) == 1);
    }
    const std::vector<ChunkKey> keys = {key};
    for (int r = 0; r < 2; ++r) {
      ASSERT_EQ(catalogue.Contains(roots[r], keys)[0], model.contains({r, n}));
    }
    ASSERT_EQ(catalogue.bytes(), model.size());
  }
}

TEST(CatalogueTest, TheEndOfAScanLetsOthersInBetweenBatches) {
  Catalogue catalogue;
  const auto id = [](uint64_t i) {
    ChunkId id;
    i *= 0x9e3779b97f4a7c15;  // all over the table, as digests are
    std::memcpy(id.key.digest.data() + 8, &i, sizeof(i));
    return id;
  };
  constexpr uint32_t kFiles = 10 * Catalogue::kScanBatch;
  for (uint32_t i = 0; i < kFiles; ++i) catalogue.Add({id(i), 1, 1});
  catalogue.BeginScan();
  for (uint32_t i = kFiles; i < 2 * kFiles; ++i) catalogue.Add({id(i), 1, 2 * kFiles - i});
  int others = 0;
  catalogue.EndScan(/*complete=*/true, [&] {
    ++others;
    EXPECT_TRUE(catalogue.Contains(id(kFiles))) << "would wait for ever for the mutex";
  });
  EXPECT_GE(others, 3 * 9);
  EXPECT_EQ(catalogue.bytes(), kFiles) << "what the scan did not see is forgotten";
  EXPECT_EQ(catalogue.Coldest()->id, id(2 * kFiles - 1));
}

}  // namespace
}  // namespace kvcake
