#include "ops/visible_devices.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

TEST(VisibleDevicesTest, AreCountedRound) {
  EXPECT_EQ(VisibleDevice(nullptr, 3), "3");
  EXPECT_EQ(VisibleDevice("2,GPU-8932,5", 0), "2");
  EXPECT_EQ(VisibleDevice("2,GPU-8932,5", 1), "GPU-8932");
  EXPECT_EQ(VisibleDevice("2,GPU-8932,5", 5), "5");
  EXPECT_EQ(VisibleDevice(VisibleDevice("4,7", 3).c_str(), 3), "7");
  EXPECT_EQ(VisibleDevice("", 2), "") << "none is visible";
}

}  // namespace
}  // namespace kvcake
