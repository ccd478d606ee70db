#include "store/disk_index.h"

#include <gtest/gtest.h>

#include <cstring>

#include "store/disk_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

DiskTierOptions Options(Seconds missing_ttl) {
  DiskTierOptions options = SmallOptions("nowhere");
  options.missing_ttl = missing_ttl;
  options.time_to_live = Seconds(100);
  return options;
}

TEST(DiskIndexTest, WhatIsForgottenIsNotLookedForUntilItIsWrittenOrTheTimeIsOver) {
  const auto keys = Chain(2);
  DiskIndex index(Options(Seconds(1000)));
  index.Add(keys[0], {.bytes = 7});
  EXPECT_EQ(index.Contains(keys), (std::vector<bool>{true, false}));
  EXPECT_FALSE(index.IsMissing(keys[0]));
  index.Forget(keys[0]);
  EXPECT_FALSE(index.Contains(keys[0]));
  EXPECT_TRUE(index.IsMissing(keys[0]));
  EXPECT_FALSE(index.IsUnreadable(keys[0]));
  index.AddWritten(keys[0], 7);
  EXPECT_TRUE(index.Contains(keys[0]));
  EXPECT_FALSE(index.IsMissing(keys[0]));
  EXPECT_EQ(index.Totals(), (std::pair<uint64_t, uint64_t>(1, 7)));

  DiskIndex hasty(Options(Seconds(0)));
  hasty.Forget(keys[0]);
  EXPECT_FALSE(hasty.IsMissing(keys[0]));
  hasty.NoteStuck(keys[0]);
  EXPECT_TRUE(hasty.IsMissing(keys[0])) << "a bad file that stays is left alone for longer";
  EXPECT_TRUE(hasty.IsUnreadable(keys[0]));
}

TEST(DiskIndexTest, WhatIsUnreadableIsSoUntilItIsWrittenAnew) {
  const ChunkKey key = Chain(1)[0];
  DiskIndex index(Options(Seconds(1)));
  index.NoteUnreadable(key);
  index.Add(key, {.bytes = 7});
  EXPECT_TRUE(index.IsUnreadable(key)) << "it is the file that cannot be read";
  index.AddWritten(key, 7);
  EXPECT_FALSE(index.IsUnreadable(key));
}

TEST(DiskIndexTest, WhatIsNotedIsBounded) {
  DiskIndex index(Options(Seconds(1000)));
  const auto key = [](uint32_t i) {
    ChunkKey key;
    std::memcpy(key.digest.data(), &i, sizeof(i));
    return key;
  };
  constexpr uint32_t kMany = 1 << 16;
  for (uint32_t i = 0; i <= kMany; ++i) {
    index.NoteMissing(key(i));
    index.NoteUnreadable(key(i));
  }
  EXPECT_FALSE(index.IsMissing(key(0)));
  EXPECT_FALSE(index.IsUnreadable(key(0)));
  EXPECT_TRUE(index.IsMissing(key(kMany)));
  EXPECT_TRUE(index.IsUnreadable(key(kMany)));
}

TEST(DiskIndexTest, OwnersCountWhereTheyHaveQuotas) {
  const auto keys = Chain(3);
  DiskTierOptions options = Options(Seconds(1));
  DiskIndex without(options);
  without.AddWritten(keys[0], 7, kAnn);
  EXPECT_TRUE(without.files().Owners().empty());
  options.owner_quota_bytes = 10;
  DiskIndex index(options);
  index.AddWritten(keys[0], 7, kAnn);
  EXPECT_TRUE(index.files().OverQuota().empty());
  index.Add(keys[1], {.bytes = 7}, kAnn);
  index.AddWritten(keys[2], 7);
  EXPECT_EQ(index.files().OverQuota(), std::vector<OwnerId>{kAnn});
  EXPECT_EQ(index.files().Owners(), (std::vector<OwnedBytes>{{kAnn, 14}}));
  index.Forget(keys[0]);
  index.Remove(keys[1]);
  EXPECT_TRUE(index.files().Owners().empty());
}

TEST(DiskIndexTest, PinsAreThoseOfItsRoot) {
  const auto keys = Chain(1);
  DiskIndex index(Options(Seconds(1)));
  index.pins().Add(keys);
  EXPECT_TRUE(index.IsPinned({Root(), keys[0]}));
  EXPECT_FALSE(index.IsPinned({keys[0], keys[0]}));
}

TEST(DiskIndexTest, ExpiresWhatWasUsedLongAgo) {
  DiskIndex index(Options(Seconds(1)));
  EXPECT_TRUE(index.IsExpired(UnixSeconds() - 200));
  EXPECT_FALSE(index.IsExpired(UnixSeconds() - 50));
  EXPECT_FALSE(DiskIndex(SmallOptions("nowhere")).IsExpired(0)) << "without a time to live";
}

}  // namespace
}  // namespace kvcake
