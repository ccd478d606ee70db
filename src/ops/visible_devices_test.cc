#include "ops/visible_devices.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

namespace kvcake {
namespace {

TEST(VisibleDevicesTest, AreCountedRound) {
  EXPECT_EQ(VisibleDevice(nullptr, 3), "3");
  EXPECT_EQ(VisibleDevice("2,GPU-8932,5", 0), "2");
  EXPECT_EQ(VisibleDevice("2,GPU-8932,5", 1), "GPU-8932");
  EXPECT_EQ(VisibleDevice("2,GPU-8932,5", 3), "2");
  EXPECT_EQ(VisibleDevice("2,GPU-8932,5", 5), "5");
  EXPECT_EQ(VisibleDevice("", 2), "") << "none is visible";
}

TEST(VisibleDevicesTest, OneIsChosen) {
  const char* const now = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::optional<std::string> before = now ? std::optional<std::string>(now) : std::nullopt;
  ChooseCudaDevice("3,5");
  EXPECT_EQ(VisibleDevice(1), "5");
  ChooseCudaDevice("5");
  EXPECT_EQ(VisibleDevice(1), "5");
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(VisibleDevice(1), "1");
  if (before) ChooseCudaDevice(*before);  // other tests' device
}

}  // namespace
}  // namespace kvcake
