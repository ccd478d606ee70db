// What kvcake uses of CUDA's runtime and of its kernel language, on the CPU: for tests of the CUDA
// backend where there is no device. It shows what is wrong in plans, indices, alignment, waits and
// lifetimes; it says nothing about speed, nor about what NVIDIA's compiler and hardware make of the
// code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "block.h"

// ---- the language ----

#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__

inline cuda_emulator::Index &threadIdx = cuda_emulator::thread_index,
                            &blockIdx = cuda_emulator::block_index,
                            &blockDim = cuda_emulator::block_size,
                            &gridDim = cuda_emulator::grid_size;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

using std::isfinite;
using std::max;
using std::min;

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __frsqrt_rn(float a) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(a)));
}
inline float __expf(float a) { return std::exp(a); }

inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
T __ldcg(const T* from) {
  return *from;
}
template <typename T>
void __stcg(T* to, T value) {
  *to = value;
}
template <typename T>
void __stwb(T* to, T value) {
  *to = value;
}
// Blocks run one after the other, and threads until they wait.
template <typename T>
T atomicAdd(T* to, T value) {
  const T old = *to;
  *to += value;
  return old;
}
inline unsigned atomicInc(unsigned* to, unsigned last) {
  const unsigned old = *to;
  *to = old >= last ? 0 : old + 1;
  return old;
}
inline void __threadfence() {}

[[noreturn]] inline void __trap() { cuda_emulator::Die("a kernel that was not compiled for it"); }
inline void __syncthreads() { cuda_emulator::MeetBlock(0); }
inline int __syncthreads_or(int value) { return cuda_emulator::MeetBlock(value != 0) > 0; }

namespace cuda_emulator {

// Each lane's value from the lane that it names.
template <typename T>
T Shuffle(T value, int from) {
  struct Shown {
    T value;
    int from;
  };
  const Shown shown{value, from};
  static_assert(sizeof(Shown) <= kLaneBytes);
  MeetWarp(
      [](const Lanes& values, Lanes* results) {
        for (int lane = 0; lane < 32; ++lane) {
          Shown of;
          std::memcpy(&of, values.bytes[lane], sizeof(of));
          if (of.from < 0 || of.from > 31) of.from = lane;
          std::memcpy(results->bytes[lane], values.bytes[of.from], sizeof(T));
        }
      },
      &shown, sizeof(shown), &value, sizeof(value));
  return value;
}

inline int Lane() { return static_cast<int>(thread_index.x % 32); }

}  // namespace cuda_emulator

inline void __syncwarp() {
  char nothing = 0;
  cuda_emulator::MeetWarp([](const cuda_emulator::Lanes&, cuda_emulator::Lanes*) {}, &nothing,
                          sizeof(nothing), &nothing, sizeof(nothing));
}
template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  return cuda_emulator::Shuffle(value, from);
}
inline int __any_sync(unsigned, int value) {
  const auto any = [](const cuda_emulator::Lanes& values, cuda_emulator::Lanes* results) {
    int found = 0;
    for (const auto& bytes : values.bytes) {
      int of_lane;
      std::memcpy(&of_lane, bytes, sizeof(of_lane));
      found |= of_lane;
    }
    for (auto& bytes : results->bytes) std::memcpy(bytes, &found, sizeof(found));
  };
  value = value != 0;
  cuda_emulator::MeetWarp(any, &value, sizeof(value), &value, sizeof(value));
  return value;
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return cuda_emulator::Shuffle(value, cuda_emulator::Lane() ^ mask);
}

// ---- the runtime ----

#define CUDART_VERSION 13000

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorDevicesUnavailable = 46,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };
constexpr unsigned long long cudaEnableDefault = 0;
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};
constexpr int cudaSharedmemCarveoutMaxShared = 100;
constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventBlockingSync = 1;
constexpr unsigned cudaEventDisableTiming = 2;
constexpr unsigned cudaHostRegisterDefault = 0;
constexpr unsigned cudaDeviceScheduleBlockingSync = 4;

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;

struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
  size_t totalGlobalMem, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
};
enum cudaLaunchAttributeID {
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
  cudaLaunchAttributePreferredSharedMemoryCarveout = 14,
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  union {
    int cooperative;
    int programmaticStreamSerializationAllowed;
    unsigned sharedMemCarveout;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim = {}, blockDim = {};
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* memory);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags = 0);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* result);

namespace cuda_emulator {

// What the call of that name answers: an error where CUDA_EMULATOR_FAULT in the environment is it.
cudaError_t AnswerTo(const char* call);

// `begin`: of kernels that may start early, BeginGrid.
void Enqueue(cudaStream_t stream, std::function<void()> operation,
             std::function<std::vector<EarlyRead>()> begin = nullptr);
void CheckLaunch(const cudaLaunchConfig_t& config, const void* kernel);
// That a kernel's blocks may have so much dynamic shared memory.
cudaError_t AllowShared(const void* kernel, int bytes);

}  // namespace cuda_emulator

struct cudaFuncAttributes {};
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel*) {
  return cuda_emulator::AnswerTo("cudaFuncGetAttributes");
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  return cuda_emulator::AllowShared(reinterpret_cast<const void*>(kernel), value);
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  cuda_emulator::CheckLaunch(*config, reinterpret_cast<const void*>(kernel));
  const std::function<void()> thread = [kernel, ... values = Parameters(arguments)] {
    kernel(values...);
  };
  cuda_emulator::Grid grid = {.blocks = {config->gridDim.x, config->gridDim.y, config->gridDim.z},
                              .threads = static_cast<int>(config->blockDim.x),
                              .shared_bytes = static_cast<int64_t>(config->dynamicSmemBytes)};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const auto& [id, value] = config->attrs[i];
    if (id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      grid.early = value.programmaticStreamSerializationAllowed != 0;
    }
  }
  std::function<std::vector<cuda_emulator::EarlyRead>()> begin;
  if (grid.early) begin = [grid, thread] { return cuda_emulator::BeginGrid(grid, thread); };
  cuda_emulator::Enqueue(
      config->stream, [grid, thread] { cuda_emulator::RunGrid(grid, thread); }, std::move(begin));
  return cudaSuccess;
}
