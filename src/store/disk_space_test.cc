#include "store/disk_space.h"

#include <gtest/gtest.h>

#include "store/disk_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class DiskSpaceTest : public testing::Test {
 protected:
  DiskSpaceTest() { fs_.space = SpaceInfo{.free_bytes = 300, .bytes = 1000}; }
  DiskTierOptions Keeping(double share) {
    DiskTierOptions options = SmallOptions(dir_.path());
    options.free_share_min = share;
    return options;
  }

  TempDir dir_;
  HookedFileSystem fs_;
};

TEST_F(DiskSpaceTest, MissesWhatIsToStayFree) {
  DiskContext context(Keeping(0.25), fs_);
  DiskSpace space(context);
  EXPECT_EQ(space.free_bytes(), std::nullopt);
  EXPECT_EQ(space.Missing(100), 0u) << "not known yet";
  space.Refresh();
  EXPECT_EQ(space.free_bytes(), 300u);
  EXPECT_EQ(space.Missing(50), 0u);
  EXPECT_EQ(space.Missing(60), 10u);
  space.Wrote(200);
  EXPECT_EQ(space.Missing(0), 150u);
  space.Wrote(200);
  EXPECT_EQ(space.free_bytes(), 0u);
  space.Removed(390);
  EXPECT_EQ(space.free_bytes(), 290u);
  fs_.space = Fail(ErrorCode::kIo, "injected");
  space.Refresh();
  EXPECT_EQ(space.free_bytes(), std::nullopt);
  EXPECT_EQ(space.Missing(1000), 0u);
}

TEST_F(DiskSpaceTest, NothingIsMissedWhereNothingIsToStayFree) {
  DiskContext context(Keeping(0), fs_);
  DiskSpace space(context);
  space.Refresh();
  EXPECT_EQ(space.Missing(10000), 0u);
  EXPECT_EQ(space.free_bytes(), 300u);
}

TEST(UselessEvictionsTest, AreThoseThatFreeLessThanHalfOfWhatIsRemoved) {
  constexpr TimePoint kNow{Seconds(5)};
  const auto may_evict = [&](std::vector<std::pair<uint64_t, int64_t>> removed_and_lost) {
    UselessEvictions evictions;
    for (const auto& [removed, lost] : removed_and_lost) evictions.Note(removed, lost, 100, kNow);
    return evictions.MayEvict(kNow);
  };
  EXPECT_TRUE(may_evict({{100, 50}}));
  EXPECT_FALSE(may_evict({{100, 51}}));
  EXPECT_TRUE(may_evict({{99, 99}})) << "too little to tell";
  EXPECT_FALSE(may_evict({{60, 60}, {40, 0}}));
  EXPECT_TRUE(may_evict({{60, 60}, {40, -20}})) << "a write that had been on its way";
  EXPECT_TRUE(may_evict({{100, 50}, {60, 60}})) << "what was judged is not judged again";
  EXPECT_TRUE(may_evict({{100, 50}, {100, 50}}));
  EXPECT_FALSE(may_evict({{100, 100}, {100, 0}})) << "nor is it forgotten";
}

TEST(UselessEvictionsTest, AreTriedAgainAfterLongerAndLonger) {
  UselessEvictions evictions;
  TimePoint now{Seconds(5)};
  EXPECT_TRUE(evictions.MayEvict(now));
  for (const double pause : {10, 20, 40, 80, 160, 320, 640, 640}) {
    evictions.Useless(now);
    EXPECT_FALSE(evictions.MayEvict(now + Seconds(pause - 1)));
    now += Seconds(pause);
    EXPECT_TRUE(evictions.MayEvict(now)) << pause;
  }
  evictions.Useful();
  evictions.Useless(now);
  EXPECT_TRUE(evictions.MayEvict(now + UselessEvictions::kShortest));
}

}  // namespace
}  // namespace kvcake
