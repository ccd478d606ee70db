#include "store/disk_upkeep.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "base/clock.h"
#include "store/disk_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class DiskUpkeepTest : public testing::Test {
 protected:
  DiskUpkeepTest() : context_(Options(dir_.path()), fs_), room_(context_) {
    upkeep_.emplace(context_, room_, clock_);
  }

  static DiskTierOptions Options(const std::string& dir) {
    DiskTierOptions options = SmallOptions(dir);
    options.upkeep_interval = Seconds(0.001);
    return options;
  }

  TempDir dir_;
  FakeClock clock_;  // of the upkeep's thread
  HookedFileSystem fs_;
  DiskContext context_;
  DiskRoom room_;
  std::optional<DiskUpkeep> upkeep_;
};

// As where a tier cannot be made after all, once its upkeep has begun: what asks to be called again
// does so no more.
TEST_F(DiskUpkeepTest, EndsThoughNobodyStoppedIt) {
  upkeep_->Start(Seconds(60));
  upkeep_.reset();
  EXPECT_EQ(context_.index.files().bytes(), 0u);
}

// What others take of the disk is seen at once, and what is to go goes, though looking through a
// large directory may be a small part of the time only.
TEST_F(DiskUpkeepTest, SpaceIsLookedAtBetweenScansThatTakeLong) {
  constexpr int kLooks = 10;
  constexpr Seconds kScan{100};
  int lists = 0, lists_of_first_look = 0, looks = 0;
  std::atomic<bool> rested = false, resumed = false;
  fs_.before_list = [&](const std::string&) {
    ++lists;
    if (looks == 1 || rested) clock_.Advance(kScan);
    resumed = resumed || rested;
  };
  fs_.before_space = [&](const std::string&) {
    if (++looks == 2) lists_of_first_look = lists;  // after those of the start
    if (looks != 2 + kLooks) return;
    EXPECT_EQ(lists, lists_of_first_look);
    rested = true;
    clock_.Advance(100 * lists * kScan);
  };
  upkeep_->Start(Seconds(60));
  EXPECT_TRUE(Eventually([&] { return rested.load(); }));
  EXPECT_TRUE(Eventually([&] { return resumed.load(); }));
  upkeep_.reset();
}

TEST_F(DiskUpkeepTest, EndsBeforeItHasBegun) {
  upkeep_.reset();
  EXPECT_EQ(context_.index.files().bytes(), 0u);
}

}  // namespace
}  // namespace kvcake
