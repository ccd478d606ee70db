// What becomes of a device that cannot be opened. Only the played device can be told to fail, by
// CUDA_EMULATOR_FAULT.
#include "ops/cuda_device.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "ops/buffer.h"

namespace kvcake {
namespace {

#ifdef KVCAKE_CUDA_EMULATED

class CudaDeviceDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a device is opened once in a process
  }

  [[noreturn]] static void Open(const char* fault) {
    setenv("CUDA_EMULATOR_FAULT", fault, 1);
    const Result<CudaDevice*> device = CudaDevice::Get();
    if (device) std::_Exit(0);
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    std::_Exit(device.error().code == ErrorCode::kUnsupported ? 3 : 4);
  }
};

TEST_F(CudaDeviceDeathTest, OneThatFailsIsUnsupported) {
  const testing::ExitedWithCode unsupported(3);
  EXPECT_EXIT(Open(""), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(Open("cudaDriverGetVersion"), unsupported, "there is no NVIDIA driver");
  EXPECT_EXIT(Open("cudaGetDeviceCount"), unsupported, "no CUDA device can be used: unavailable");
  EXPECT_EXIT(Open("cudaSetDevice"), unsupported, "no CUDA device can be used: unavailable");
  EXPECT_EXIT(Open("cudaStreamCreateWithFlags"), unsupported, "can be used: unavailable");
  EXPECT_EXIT(
      {
        setenv("CUDA_VISIBLE_DEVICES", "7", 1);
        Open("cudaGetDeviceCount");
      },
      unsupported, "can be used: unavailable \\(CUDA_VISIBLE_DEVICES is \"7\"\\)");
  EXPECT_EXIT(Open("cudaFuncGetAttributes"), unsupported,
              "emulated CUDA device has compute capability 9.0, for which this kvcake has no "
              "kernels: unavailable");
}

TEST_F(CudaDeviceDeathTest, MemoryThatIsNotThereEndsTheProcessWithTheNumbers) {
  EXPECT_EXIT(Buffer(uint64_t{9} << 30, Memory::kDevice), testing::ExitedWithCode(1),
              "emulated CUDA device has [0-9]+ of 8589934592 bytes left, not 9663676416");
}

TEST(CudaDeviceTest, MemoryThatTheHostDoesNotLockIsRefusedWithTheNumber) {
  setenv("CUDA_EMULATOR_FAULT", "cudaHostRegister", 1);
  const Result<Buffer> refused = Buffer::Create(12288, Memory::kPinned);
  unsetenv("CUDA_EMULATOR_FAULT");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(refused.error().message, "the host has no 12288 bytes to page-lock: unavailable");
  EXPECT_TRUE(Buffer::Create(12288, Memory::kPinned));
}

#endif

}  // namespace
}  // namespace kvcake
