// Instructions of the device that CUDA's language has no words for. tests/cuda_emulator has a file
// of this name for the CPU.
#pragma once

#include <cstdint>

namespace kvcake::cuda {

// What a launch gives each block.
template <typename T>
__device__ __forceinline__ T* DynamicShared() {
  extern __shared__ uint4 dynamic_shared[];
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

}  // namespace kvcake::cuda
