// Instructions of the device that CUDA's language has no words for. tests/cuda_emulator has a file
// of this name for the CPU.
#pragma once

#include <cstdint>

namespace kvcake::cuda {

// What a launch gives each block; its address is a multiple of 1,024, as swizzles want it.
template <typename T>
__device__ __forceinline__ T* DynamicShared() {
  extern __shared__ __align__(1024) uint4 dynamic_shared[];
  return reinterpret_cast<T*>(dynamic_shared);
}

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The lower half holds `low`.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Enqueues a copy of 16 bytes, or of zeros: then nothing is read.
__device__ __forceinline__ void CopyAsync(void* shared, const void* global, bool read) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
               "l"(global), "r"(read ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all but the last kGroups commits of this thread have been done.
template <int kGroups>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Until the kernels enqueued before this one have ended and all that they wrote can be read. No-op
// where kernels never start early (ops/cuda_launch.h).
__device__ __forceinline__ void WaitForEarlierKernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel's blocks take what room there is, once all of this kernel's have said so.
__device__ __forceinline__ void LetNextKernelStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Four 8 x 8 matrices, whose rows lanes 0-7, 8-15, 16-23 and 24-31 point to.
__device__ __forceinline__ void LoadMatrices(const uint16_t* row, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(row))
               : "memory");
}

__device__ __forceinline__ void LoadTransposed(const uint16_t* row, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// c[16][8] += a[16][16] x b[16][8]
__device__ __forceinline__ void MultiplyAdd(const uint4& a, uint32_t b0, uint32_t b1,
                                            float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// ---- wgmma: of a warpgroup, whose four warps hold 16 rows each of the left matrix and the sums
// ----

// Whether the code that is compiled may have it: only that for compute capability 9.0.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kWgmmaCompiled = true;
#else
constexpr bool kWgmmaCompiled = false;
#endif

// What this thread has written to shared memory, or has waited for, is for the Wgmmas of all
// threads behind the next barrier.
__device__ __forceinline__ void PublishForWgmma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Whatever the compiler computes these by stays on one side of it.
template <int kSteps, int kColumns>
__device__ __forceinline__ void Pin(uint4 (&a)[kSteps], float (&c)[kColumns][4]) {
#pragma unroll
  for (uint4& step : a) {
    asm volatile("" : "+r"(step.x), "+r"(step.y), "+r"(step.z), "+r"(step.w)::"memory");
  }
#pragma unroll
  for (auto& columns : c) {
    asm volatile(""
                 : "+f"(columns[0]), "+f"(columns[1]), "+f"(columns[2]),
                   "+f"(columns[3])::"memory");
  }
}

// Before the first Wgmmas of these operands and sums, which nobody else touches until FinishWgmma.
template <int kSteps, int kColumns>
__device__ __forceinline__ void BeginWgmma(uint4 (&a)[kSteps], float (&c)[kColumns][4]) {
  Pin(a, c);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Until they have been done.
template <int kSteps, int kColumns>
__device__ __forceinline__ void FinishWgmma(uint4 (&a)[kSteps], float (&c)[kColumns][4]) {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  Pin(a, c);
}

// Enqueues c[64][64] += a[64][16] x b[16][64]: a's and c's rows as MultiplyAdd has them, of c 8
// columns after the other. `b` is PTX's descriptor of the matrix in shared memory; kNMajor: of rows
// of 64, else of columns of 16.
template <bool kNMajor>
__device__ __forceinline__ void Wgmma(const uint4& a, uint64_t b, float (*c)[4]) {
#define KVCAKE_SUMS(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
      "%27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
      : KVCAKE_SUMS(0), KVCAKE_SUMS(1), KVCAKE_SUMS(2), KVCAKE_SUMS(3), KVCAKE_SUMS(4),
        KVCAKE_SUMS(5), KVCAKE_SUMS(6), KVCAKE_SUMS(7)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "n"(kNMajor ? 1 : 0)
      : "memory");
#undef KVCAKE_SUMS
}

}  // namespace kvcake::cuda
