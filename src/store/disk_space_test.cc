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
