#include "engine/tenant_pages.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace kvcake {
namespace {

class TenantPagesTest : public testing::Test {
 protected:
  static constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 64, .chunk_tokens = 16};

  static ChunkKey KeyOf(const std::string& tenant, int chunk) {
    return {Sha256().Update(tenant + std::to_string(chunk)).Finish()};
  }
  // As a request of this tenant's does that ends with so many chunks; its pages.
  std::vector<PageHandle> Answer(const std::string& tenant, int chunks) {
    std::vector<ChunkKey> keys;
    std::vector<PageHandle> pages;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      keys.push_back(KeyOf(tenant, chunk));
      pages.push_back(pool_->Publish(*pool_->Draw(), keys.back(), NumericPath::kF32));
    }
    owned_.Note(tenant, keys);
    return pages;
  }

  const std::unique_ptr<PagePool> pool_ = *PagePool::Create(kLayout, 10 * kLayout.page_bytes());
  TenantPages owned_{*pool_};
};

TEST_F(TenantPagesTest, EachForgetsItsOwn) {
  Answer("ann", 3);
  Answer("bob", 2);
  Answer("", 1);
  owned_.Drop("ann");
  EXPECT_EQ(pool_->Stats().cached, 3u);
  EXPECT_FALSE(pool_->Contains(KeyOf("ann", 0)));
  EXPECT_TRUE(pool_->Contains(KeyOf("bob", 1)));
  owned_.Drop("nobody");
  owned_.Drop("");
  EXPECT_EQ(pool_->Stats().cached, 3u);
}

TEST_F(TenantPagesTest, WhatIsUsedStaysAndGoesTheNextTime) {
  auto pages = Answer("ann", 3);
  owned_.Drop("ann");
  EXPECT_EQ(pool_->Stats().referenced, 3u);
  pages.clear();
  EXPECT_EQ(pool_->Stats().cached, 3u);
  owned_.Drop("ann");
  EXPECT_EQ(pool_->Stats().cached, 0u);
}

TEST_F(TenantPagesTest, AKeyCountsOnceAndUntilItIsForgotten) {
  Answer("ann", 3);
  Answer("ann", 3);
  Answer("bob", 2);
  EXPECT_EQ(owned_.keys(), 5u);
  owned_.Drop("ann");
  EXPECT_EQ(owned_.keys(), 2u);
}

TEST_F(TenantPagesTest, RemembersWhatTheMemoryCanHold) {
  for (int tenant = 0; tenant < 100; ++tenant) Answer(std::to_string(tenant), 5);
  EXPECT_LE(owned_.keys(), 20u);
  EXPECT_EQ(pool_->Stats().cached, 10u);
  owned_.Drop("99");
  owned_.Drop("98");
  EXPECT_EQ(pool_->Stats().cached, 0u);
}

}  // namespace
}  // namespace kvcake
