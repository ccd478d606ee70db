#include "store/disk_upkeep.h"

#include <gtest/gtest.h>

#include <optional>

#include "store/disk_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class DiskUpkeepTest : public testing::Test {
 protected:
  DiskUpkeepTest() : context_(SmallOptions(dir_.path()), fs_), room_(context_) {
    upkeep_.emplace(context_, room_);
  }

  TempDir dir_;
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

TEST_F(DiskUpkeepTest, EndsBeforeItHasBegun) {
  upkeep_.reset();
  EXPECT_EQ(context_.index.files().bytes(), 0u);
}

}  // namespace
}  // namespace kvcake
