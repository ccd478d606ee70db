// For tests of kernels: every numeric path, those that this machine lacks skipped by name, and
// seeded random values.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "ops/attention.h"
#include "ops/compute.h"
#include "ops/cuda_device.h"

namespace kvcake {

class PathTest : public testing::TestWithParam<NumericPath> {
 protected:
  void SetUp() override {
    if (!PathAvailable(GetParam())) {
      GTEST_SKIP() << "this machine cannot run " << NumericPathName(GetParam());
    }
  }
};

inline std::string PathTestName(const testing::TestParamInfo<NumericPath>& info) {
  std::string name = NumericPathName(info.param);
  std::erase(name, '-');
  return name;
}

// Runs a suite on every path of the CPU.
#define KVCAKE_EVERY_PATH(suite) \
  INSTANTIATE_TEST_SUITE_P(Paths, suite, testing::ValuesIn(kCpuPaths), PathTestName)
#define KVCAKE_EVERY_PATH_AND_CUDA(suite) \
  KVCAKE_EVERY_PATH(suite);               \
  INSTANTIATE_TEST_SUITE_P(Cuda, suite, testing::Values(NumericPath::kBf16Tensor), PathTestName)

// The CPU's fastest path, and CUDA.
inline std::string DeviceTestName(const testing::TestParamInfo<NumericPath>& info) {
  return OnCuda(info.param) ? "cuda" : "cpu";
}
#define KVCAKE_BOTH_DEVICES(suite)                                                                \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, testing::Values(BestPath(), NumericPath::kBf16Tensor), \
                           DeviceTestName)

// Whether activations, and so products, are bf16: else f32.
inline bool Bf16Products(NumericPath path) { return ActivationBytes(path) == 2; }

inline void WritePage(NumericPath path, const PagePool& pool, PageId page,
                      std::span<const std::byte> bytes) {
  ASSERT_LE(bytes.size(), pool.layout().page_bytes());
  WriteTo(MemoryOf(path), pool.Data(page), bytes);
}

// NaN at every place: what is read before it is written spoils the sums.
inline void SpoilPage(NumericPath path, const PagePool& pool, PageId page) {
  WritePage(path, pool, page, std::vector<std::byte>(pool.layout().page_bytes(), std::byte{0xff}));
}

inline std::vector<float> RandomFloats(std::mt19937& rng, int64_t n, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(rng);
  return values;
}

inline std::vector<uint16_t> RandomBf16(std::mt19937& rng, int64_t n, float scale = 1.0f) {
  std::vector<uint16_t> values;
  for (float value : RandomFloats(rng, n, scale)) values.push_back(F32ToBf16(value));
  return values;
}

// Copies of values to and from where the path's kernels read and write them.
template <typename T>
Buffer ToKernels(NumericPath path, const std::vector<T>& values) {
  return CopyOf(MemoryOf(path), std::as_bytes(std::span(values)));
}
template <typename T>
std::vector<T> FromKernels(NumericPath path, const T* from, int64_t count) {
  if (!OnCuda(path)) return {from, from + count};
  const Buffer pinned(count * sizeof(T), Memory::kPinned);
  CudaDevice* const device = CudaDevice::Get().value();
  device->CopyToHost(pinned.data(), from, pinned.size());
  device->Wait();
  return {pinned.as<T>(), pinned.as<T>() + count};
}

// One element of activations, as f32. Of the CPU.
inline float ElementAt(NumericPath path, const Activations& a, int64_t row, int64_t i) {
  const int64_t at = row * a.stride + i;
  if (Bf16Products(path)) return Bf16ToF32(reinterpret_cast<uint16_t*>(a.data)[at]);
  return reinterpret_cast<float*>(a.data)[at];
}

// All of them, without the gaps between rows.
inline std::vector<float> RowsOf(NumericPath path, const Activations& a) {
  auto bytes = FromKernels(path, a.data, a.rows * a.stride * ActivationBytes(path));
  Activations copy = a;
  copy.data = bytes.data();
  std::vector<float> rows;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t i = 0; i < a.k; ++i) rows.push_back(ElementAt(path, copy, r, i));
  }
  return rows;
}

// x[rows][k] as activations of the path.
inline void SetActivations(NumericPath path, const std::vector<float>& x, const Activations& a) {
  std::vector<std::byte> bytes(a.rows * a.stride * ActivationBytes(path));
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t i = 0; i < a.k; ++i) {
      const int64_t at = row * a.stride + i;
      if (Bf16Products(path)) {
        reinterpret_cast<uint16_t*>(bytes.data())[at] = F32ToBf16(x[row * a.k + i]);
      } else {
        reinterpret_cast<float*>(bytes.data())[at] = x[row * a.k + i];
      }
    }
  }
  WriteTo(MemoryOf(path), a.data, bytes);
}

// By an attention of its own.
inline void RunAttention(const Compute& compute, const AttentionShape& shape, const PagePool& pool,
                         int layer, std::span<const AttentionSlice> slices, int64_t q_stride,
                         const Activations& out,
                         AttentionBackend backend = AttentionBackend::kAuto) {
  const auto attention =
      Attention::Create(compute, shape, pool, {out.rows, std::ssize(slices)}, backend);
  const auto plan = attention->NewPlan();
  plan->Set(slices);
  attention->Run(*plan, layer, q_stride, out);
  compute.Wait();
}

}  // namespace kvcake
