// Instructions of the device that CUDA's language has no words for. tests/cuda_emulator has a file
// of this name for the CPU.
#pragma once

#include <cstdint>

#include "ops/cuda_tensor_map.h"

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

// What a kernel that may start early does first, where it reads nothing before.
__device__ __forceinline__ void BeginEarly() {
  LetNextKernelStart();
  WaitForEarlierKernels();
}

// Adds one to a number by which blocks count; what it was. What is seen by this thread will be by
// those that see the sum in AwaitCount.
__device__ __forceinline__ unsigned CountOne(unsigned* number) {
  unsigned old;
  asm volatile("atom.release.gpu.global.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(number) : "memory");
  return old;
}

// Until the number is so large, or larger.
__device__ __forceinline__ void AwaitCount(const unsigned* number, unsigned count) {
  unsigned now;
  do {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(number) : "memory");
  } while (now < count);
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

// The number is 0 again.
__device__ __forceinline__ void BeginCount(unsigned* number) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], 0;" ::"l"(number) : "memory");
}

// Copies that are enqueued behind it see what this thread sees, and write after what it has waited
// for.
__device__ __forceinline__ void OrderCopies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
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
template <int kColumns>
__device__ __forceinline__ void PinSums(float (&c)[kColumns][4]) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
  }
}

template <int kSteps>
__device__ __forceinline__ void PinOperands(uint4 (&a)[kSteps]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    asm volatile("" : "+r"(a[step].x), "+r"(a[step].y), "+r"(a[step].z), "+r"(a[step].w)::"memory");
  }
}

// Before the first Wgmmas of a group with these operands and sums, which nobody else touches until
// the group has been waited for.
template <int kSteps, int kColumns>
__device__ __forceinline__ void BeginWgmma(uint4 (&a)[kSteps], float (&c)[kColumns][4]) {
  PinOperands(a);
  PinSums(c);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Ends a group of Wgmmas.
__device__ __forceinline__ void CommitWgmma() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until all but the last kLeft groups have been done; their sums may be read behind PinSums.
template <int kLeft>
__device__ __forceinline__ void WaitForWgmma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

// Enqueues c[64][n] += a[64][16] x b[16][n], n = 64 or 128: a's and c's rows as MultiplyAdd has
// them, of c 8 columns after the other. `b` is PTX's descriptor of the matrix in shared memory;
// kNMajor: of rows of n, else of columns of 16.
#define KVCAKE_SUMS(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
template <bool kNMajor>
__device__ __forceinline__ void Wgmma(const uint4& a, uint64_t b, float (&c)[8][4]) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, "
      "%6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
      "%23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1, 1, "
      "1, %37;"
      : KVCAKE_SUMS(c, 0), KVCAKE_SUMS(c, 1), KVCAKE_SUMS(c, 2), KVCAKE_SUMS(c, 3),
        KVCAKE_SUMS(c, 4), KVCAKE_SUMS(c, 5), KVCAKE_SUMS(c, 6), KVCAKE_SUMS(c, 7)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "n"(kNMajor ? 1 : 0)
      : "memory");
}
// The first 64 of 128 columns, and the others.
template <bool kNMajor>
__device__ __forceinline__ void Wgmma(const uint4& a, uint64_t b, float (&lower)[8][4],
                                      float (&upper)[8][4]) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, "
      "%6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, "
      "%39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, "
      "%55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, 1, 1, "
      "1, %69;"
      : KVCAKE_SUMS(lower, 0), KVCAKE_SUMS(lower, 1), KVCAKE_SUMS(lower, 2), KVCAKE_SUMS(lower, 3),
        KVCAKE_SUMS(lower, 4), KVCAKE_SUMS(lower, 5), KVCAKE_SUMS(lower, 6), KVCAKE_SUMS(lower, 7),
        KVCAKE_SUMS(upper, 0), KVCAKE_SUMS(upper, 1), KVCAKE_SUMS(upper, 2), KVCAKE_SUMS(upper, 3),
        KVCAKE_SUMS(upper, 4), KVCAKE_SUMS(upper, 5), KVCAKE_SUMS(upper, 6), KVCAKE_SUMS(upper, 7)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "n"(kNMajor ? 1 : 0)
      : "memory");
}
template <bool kNMajor>
__device__ __forceinline__ void Wgmma(const uint4& a, uint64_t b, float (&c)[16][4]) {
  Wgmma<kNMajor>(a, b, reinterpret_cast<float(&)[8][4]>(c[0]),
                 reinterpret_cast<float(&)[8][4]>(c[8]));
}
#undef KVCAKE_SUMS

// Whether it is so for any thread of the warpgroup, each of which has its own number; all wait for
// each other.
__device__ __forceinline__ bool AnyOfWarpgroup(int warpgroup, bool value) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred mine, all;\n"
      "setp.ne.u32 mine, %1, 0;\n"
      "barrier.cta.red.or.aligned.pred all, %2, 128, mine;\n"
      "selp.u32 %0, 1, 0, all;\n"
      "}"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(value)), "r"(warpgroup + 1)
      : "memory");
  return any != 0;
}

// Registers that each thread of a warpgroup has from here on: fewer, or more when others have left
// them.
template <int kRegisters>
__device__ __forceinline__ void LeaveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- mbarriers and TMA, for compute capability 9.0 ----

// Whether the code that is compiled may have them.
#if __CUDA_ARCH__ >= 900
constexpr bool kTmaCompiled = true;
#else
constexpr bool kTmaCompiled = false;
#endif

// A barrier in shared memory. Its phases end one after the other, each when so many arrivals have
// come as it began with, and all bytes that are expected of copies.
using Barrier = uint64_t;

__device__ __forceinline__ void InitBarrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}

// Barriers that this thread has begun are for all behind the next __syncthreads, and for copies.
__device__ __forceinline__ void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void Arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}

// Arrives once two numbers have been computed, which are never negative: the address depends on
// them. Lane 0 of the warp does.
__device__ __forceinline__ void ArriveAfter(float a, float b, Barrier* barrier) {
  const int never = a < 0.0f || b < 0.0f ? 1 : 0;
  if (threadIdx.x % 32 == 0) Arrive(barrier + never);
}

// Arrives, and has the phase wait for so many bytes of copies.
__device__ __forceinline__ void Expect(Barrier* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}

// Until a phase of that parity has ended: the first is 0, that before it 1.
__device__ __forceinline__ void AwaitPhase(Barrier* barrier, uint32_t parity) {
  uint32_t ended;
  do {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n"
        "}"
        : "=r"(ended)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  } while (ended == 0);
}

// Enqueues a copy of so many bytes, a multiple of 16, as are the addresses, to shared memory. The
// barrier gets the bytes.
__device__ __forceinline__ void CopyBulk(void* shared, const void* global, int bytes,
                                         Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}

// Enqueues a copy of the box at those coordinates of a tensor to shared memory, swizzled; zeros for
// what is beyond the tensor. The barrier gets the bytes of all of the box.
__device__ __forceinline__ void CopyBox(void* shared, const TensorMap& tensor,
                                        const BoxCoordinates& at, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(SharedAddress(shared)),
      "l"(&tensor), "r"(SharedAddress(barrier)), "r"(at.of[0]), "r"(at.of[1]), "r"(at.of[2]),
      "r"(at.of[3]), "r"(at.of[4])
      : "memory");
}

}  // namespace kvcake::cuda
