#include "ops/compute.h"

#include <gtest/gtest.h>

#include "base/cpu.h"

namespace kvcake {
namespace {

// Tests of a path that is not available are skipped, and the program takes a slower one: neither
// says that something is wrong.
TEST(ComputeTest, WhatTheCpuCanDoIsAvailableAndTheFastestIsTaken) {
#if defined(__x86_64__)
  const bool bf16_dot = Cpu().avx512_bf16, f32_fma = Cpu().avx2_fma;
  const bool amx = bf16_dot && AskForAmx().has_value();
#else
  const bool amx = false, bf16_dot = false, f32_fma = true;
#endif
  EXPECT_EQ(PathAvailable(NumericPath::kBf16Amx), amx);
  EXPECT_EQ(PathAvailable(NumericPath::kBf16Dot), bf16_dot);
  EXPECT_EQ(PathAvailable(NumericPath::kF32Fma), f32_fma);
  EXPECT_TRUE(PathAvailable(NumericPath::kF32));
  EXPECT_FALSE(PathAvailable(NumericPath::kUnknown));
  EXPECT_EQ(BestPath(), amx        ? NumericPath::kBf16Amx
                        : bf16_dot ? NumericPath::kBf16Dot
                        : f32_fma  ? NumericPath::kF32Fma
                                   : NumericPath::kF32);
}

}  // namespace
}  // namespace kvcake
