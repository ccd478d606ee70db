// What tests of WriteBehind have in common.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "store/slow_tiers_testing.h"
#include "store/tier_testing.h"
#include "store/write_behind.h"

namespace kvcake {

inline constexpr KvLayout kWriteLayout{
    .layers = 2, .kv_heads = 1, .head_dim = 16, .chunk_tokens = 16};

class WriteBehindTest : public testing::Test {
 protected:
  static MemoryTierOptions Options() {
    MemoryTierOptions options;
    options.layout = kWriteLayout;
    return options;
  }
  static ChunkKey Key(int i) { return ChunkKeys(KvIdentity().Root(), std::vector{i}, 1)[0]; }
  void Enqueue(WriteBehind& writer, int i) {
    writer.Offer({Key(i), KvIdentity().Root(), i, NumericPath::kF32, std::move(*pool_->Draw())});
  }
  // Chunks 0 to n - 1, published and held by somebody.
  std::vector<PageHandle> Document(int n) {
    std::vector<PageHandle> pages;
    for (int i = 0; i < n; ++i) {
      pages.push_back(pool_->Publish(std::move(*pool_->Draw()), Key(i), NumericPath::kF32));
    }
    return pages;
  }
  static void Offer(WriteBehind& writer, const std::vector<PageHandle>& document) {
    for (int i = 0; i < static_cast<int>(document.size()); ++i) {
      writer.Offer({Key(i), KvIdentity().Root(), i, NumericPath::kF32, document[i].Share()});
    }
  }
  // As many pages as the pool has, and then one more for each that the writer gives.
  int DrawAll() {
    std::vector<PageHandle> pages;
    while (auto page = pool_->Draw()) pages.push_back(std::move(*page));
    return static_cast<int>(pages.size());
  }

  static bool Holds(Tier& tier, int i) { return tier.Residency(std::vector{Key(i)})[0]; }

  // However impatient it is.
  static bool Flushed(WriteBehind& writer) {
    for (int i = 0; i < 10000; ++i) {
      if (writer.Flush()) return true;
    }
    return false;
  }

  std::unique_ptr<PagePool> pool_ =
      PagePool::Create(kWriteLayout, 16 * kWriteLayout.page_bytes()).value();
  GatedTier tier_{Options()};
};

}  // namespace kvcake
