#include "ops/cuda_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcake {
namespace {

using testing::HasSubstr;

std::string Why(const Status& status) {
  EXPECT_TRUE(status || status.error().code == ErrorCode::kUnsupported);
  return status ? "" : status.error().message;
}

TEST(CudaSupportTest, ADriverIsOfTheToolkitsMajorVersionOrNewer) {
  EXPECT_THAT(Why(CheckCudaDriver(0, 13000)), HasSubstr("there is no NVIDIA driver"));
  EXPECT_THAT(Why(CheckCudaDriver(12090, 13000)),
              HasSubstr("the driver supports CUDA 12.9, and this kvcake was built with 13.0"));
  EXPECT_EQ(Why(CheckCudaDriver(13000, 13010)), "") << "minor versions are compatible";
  EXPECT_EQ(Why(CheckCudaDriver(12020, 12060)), "");
  EXPECT_EQ(Why(CheckCudaDriver(13000, 12060)), "");
}

TEST(CudaSupportTest, ACardIsAnA100OrNewer) {
  EXPECT_THAT(Why(CheckCudaCard("Tesla T4", 75, 13000)),
              HasSubstr("Tesla T4 has compute capability 7.5"));
  EXPECT_EQ(Why(CheckCudaCard("A100", 80, 12020)), "");
  EXPECT_EQ(Why(CheckCudaCard("L4", 89, 12020)), "");
}

TEST(CudaSupportTest, KernelsThatStartEarlyNeedANewerDriver) {
  EXPECT_THAT(Why(CheckCudaCard("H100", 90, 12040)),
              HasSubstr("H100: the driver supports CUDA 12.4, and on this card kvcake needs one "
                        "that supports 12.5"));
  EXPECT_EQ(Why(CheckCudaCard("H100", 90, 12050)), "");
}

}  // namespace
}  // namespace kvcake
