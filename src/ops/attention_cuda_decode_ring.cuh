// What decode's kernels read: keys, then values of a partial, that stream through a ring in shared
// memory. Device code of attention_cuda_decode.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention.h"
#include "ops/attention_cuda_sums.cuh"
#include "ops/cuda_instructions.cuh"

namespace kvcake::cuda {

constexpr int kDecodeSlotsMax = 4;
constexpr int kDecodeThreads = 256;
constexpr int kDecodeResident = 2;  // blocks of threads that registers allow

// The sizes of one kernel. It serves heads of up to kDimensions dimensions; kOutCount blocks of
// threads share the result's, and repeat the scores.
template <int kDimensions, int kOutCount>
struct DecodeShape {
  static constexpr int kDim = kDimensions, kOuts = kOutCount, kOut = kDim / kOuts;
  static constexpr int kThreads = kDecodeThreads, kWarps = kThreads / 32;
  static constexpr int kBlocks = kAttentionPartial / kAttentionBlock;
  static constexpr int kBlocksOfWarp = kBlocks / kWarps;
  static constexpr int kGroups = kAttentionPartial / 16;  // of keys, each in one page
  static constexpr int kSteps = kAttentionBlock / 16;     // of products over a block's keys
  static constexpr int kTiles = kOut > 8 * kWarps ? kOut / 8 / kWarps : 1;  // of 8 dims, of a warp

  // What a warp loads at once: some keys, or the same number of bytes of values. The values that
  // all warps load at once are a stage. Rows are an odd number of 16 bytes apart, so that eight of
  // them fall into different banks.
  static constexpr int kKeys = kDim <= 128 ? 16 : 8;
  static constexpr int kLoadsOfBlock = kAttentionBlock / kKeys;
  static constexpr int kValues = kKeys * kOuts;
  static constexpr int kKeyStride = kDim + 8, kValueStride = kOut + 8;
  static constexpr int kStageKeys = kWarps * kValues;
  static constexpr int kWarpElements = kValues * kValueStride;
  static constexpr int kSlotElements = kWarps * kWarpElements;
  static_assert(kKeys * kKeyStride <= kWarpElements && kStageKeys % kAttentionBlock == 0);
  static_assert(kBlocks % kWarps == 0 && kOut % 16 == 0);

  // Bytes of shared memory. `rows`: of a tile.
  static constexpr __host__ __device__ int SlotBytes() { return kSlotElements * 2; }
  static constexpr __host__ __device__ int WeightBytes(int rows) {
    return rows / 8 * kBlocks * kSteps * 32 * static_cast<int>(sizeof(uint2));
  }
  static constexpr int kQueryBytes = kDim / 16 * 32 * static_cast<int>(sizeof(uint4));
  static constexpr int kPageBytes = kGroups * static_cast<int>(sizeof(const uint16_t*));
  static constexpr __host__ __device__ int StateBytes(int rows) {
    return kBlocks * rows * static_cast<int>(sizeof(float));
  }
  static constexpr __host__ __device__ int Bytes(int slots, int rows) {
    constexpr int kStates = 6;  // largest scores, scales, four lanes' sums
    return slots * SlotBytes() + WeightBytes(rows) + kQueryBytes + kPageBytes +
           kStates * StateBytes(rows) + 16;
  }
};

// One thread's part in the loads of a partial. Each warp loads keys of blocks of its own, which it
// reads alone, then a share of all values, which all warps read: into the same memory of its own,
// so that keys wait for no barrier, and values are under way before all keys are read.
template <typename Shape>
class DecodeRing {
 public:
  // `memory`: `slots` slots; `pages`: Shape::kGroups of them.
  __device__ __forceinline__ DecodeRing(const AttentionArgs& args, const AttentionTask& task,
                                        int kv_head, int first_dim, int slots, uint16_t* memory,
                                        const uint16_t** pages)
      : args_(args),
        task_(task),
        kv_head_(kv_head),
        first_dim_(first_dim),
        slots_(slots),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        memory_(memory),
        pages_(pages) {}

  // Starts the loads of `keys` keys from position `from` on, and waits for the kernels before this
  // one as late as it may: none of them writes the first old_keys keys and their values, nor the
  // lists of pages. All threads of the block.
  __device__ __forceinline__ void Begin(int from, int keys, int old_keys);
  // Until this thread's share of the current load is there: the threads that read it meet next.
  __device__ __forceinline__ void Await() const;
  // Goes on to the next load, and fills the current one's slot again, which nobody reads any more.
  __device__ __forceinline__ void Refill();

  // The current load: Shape::kKeys keys of this warp, or a stage of Shape::kStageKeys values.
  __device__ __forceinline__ const uint16_t* Keys() const {
    return Values() + warp_ * Shape::kWarpElements;
  }
  __device__ __forceinline__ const uint16_t* Values() const {
    return memory_ + slot_ * Shape::kSlotElements;
  }
  __device__ __forceinline__ int slots() const { return slots_; }
  __device__ __forceinline__ int stages() const {
    return (keys_ + Shape::kStageKeys - 1) / Shape::kStageKeys;
  }

 private:
  // How often each warp loads keys.
  __device__ __forceinline__ int KeyLoads() const {
    constexpr int kAtOnce = Shape::kWarps * kAttentionBlock;
    return (keys_ + kAtOnce - 1) / kAtOnce * Shape::kLoadsOfBlock;
  }
  __device__ __forceinline__ void FindPages(int from) const;
  // The keys, or values, of this warp's number-th load: some from First on.
  __device__ __forceinline__ int First(int number) const;
  template <int kRows, int kColumns, int kStride>
  __device__ __forceinline__ void Copy(uint16_t* to, int key, int offset, int dims) const;
  __device__ __forceinline__ void Load(int number, int slot) const;

  const AttentionArgs& args_;
  const AttentionTask& task_;
  const int kv_head_;
  const int first_dim_;
  const int slots_;
  const int warp_;
  const int lane_;
  uint16_t* const memory_;        // [slot][warp]
  const uint16_t** const pages_;  // [group]: its first key

  int keys_ = 0;
  int load_ = 0;  // the current one: of the keys, then of the stages
  int slot_ = 0;  // its
};

// Where the partial's keys lie, by 16.
template <typename Shape>
__device__ __forceinline__ void DecodeRing<Shape>::FindPages(int from) const {
  const int group = static_cast<int>(threadIdx.x);
  if (group * 16 >= keys_) return;
  const int position = from + group * 16, chunk = position / args_.chunk_tokens;
  const PageId page = __ldg(args_.pages + task_.pages + chunk);
  const int64_t token = int64_t{kv_head_} * args_.chunk_tokens + position % args_.chunk_tokens;
  pages_[group] = args_.slab + page * args_.page_elements + token * args_.head_dim;
}

// Enqueues copies of kRows keys or values from `key` on, by this warp. Those up to a multiple of 16
// that nobody sees, which hold anything, become zeros.
template <typename Shape>
template <int kRows, int kColumns, int kStride>
__device__ __forceinline__ void DecodeRing<Shape>::Copy(uint16_t* to, int key, int offset,
                                                        int dims) const {
  constexpr int kPieces = kColumns / 8, kStep = 32 / kPieces;  // rows at once
  constexpr int kOfGroup = kRows < 16 ? kRows : 16;
  static_assert(32 % kPieces == 0 && kOfGroup % kStep == 0);
  const int row = lane_ / kPieces, dim = lane_ % kPieces * 8, step = kStep * args_.head_dim;
  if (dim >= dims) return;
  to += row * kStride + dim;
  offset += (key % 16 + row) * args_.head_dim + dim;
  const uint16_t* const* const pages = pages_ + key / 16;
  if (key + kRows <= keys_) {
#pragma unroll
    for (int group = 0; group < kRows; group += 16) {
      const uint16_t* from = pages[group / 16] + offset;
#pragma unroll
      for (int first = group; first < group + kOfGroup; first += kStep, from += step) {
        CopyAsync(to + first * kStride, from, true);
      }
    }
  } else {
    const int end = (keys_ + 15) / 16 * 16;
#pragma unroll 1
    for (int group = 0; group < kRows && key + group < end; group += 16) {
      const uint16_t* from = pages[group / 16] + offset;
#pragma unroll 1
      for (int first = group; first < group + kOfGroup; first += kStep, from += step) {
        CopyAsync(to + first * kStride, from, key + first + row < keys_);
      }
    }
  }
}

// Enqueues and commits what this warp loads as the partial's `number`th: keys of its own blocks,
// then its share of a stage.
template <typename Shape>
__device__ __forceinline__ void DecodeRing<Shape>::Load(int number, int slot) const {
  uint16_t* const to = memory_ + slot * Shape::kSlotElements + warp_ * Shape::kWarpElements;
  const bool values = number >= KeyLoads();
  if (number < KeyLoads() + stages()) {
    const int first = First(number);
    if (Shape::kOuts == 1 || !values) {
      Copy<Shape::kKeys, Shape::kDim, Shape::kKeyStride>(
          to, first, values ? static_cast<int>(args_.plane_elements) : 0, args_.head_dim);
    } else {
      Copy<Shape::kValues, Shape::kOut, Shape::kValueStride>(
          to, first, static_cast<int>(args_.plane_elements) + first_dim_,
          args_.head_dim - first_dim_);
    }
  }
  CommitCopies();
}

template <typename Shape>
__device__ __forceinline__ int DecodeRing<Shape>::First(int number) const {
  const int stage = number - KeyLoads();
  if (stage >= 0) return stage * Shape::kStageKeys + warp_ * Shape::kValues;
  const int block = number / Shape::kLoadsOfBlock * Shape::kWarps + warp_;
  return block * kAttentionBlock + number % Shape::kLoadsOfBlock * Shape::kKeys;
}

template <typename Shape>
__device__ __forceinline__ void DecodeRing<Shape>::Begin(int from, int keys, int old_keys) {
  static_assert(Shape::kKeys <= Shape::kValues);
  keys_ = keys;
  load_ = slot_ = 0;
  FindPages(from);
  __syncthreads();
  bool waited = false;
#pragma unroll 1
  for (int slot = 0; slot < slots_; ++slot) {
    const int first = First(slot);
    if (!waited && first < keys && first + Shape::kValues > old_keys) {
      WaitForEarlierKernels();
      waited = true;
    }
    Load(slot, slot);
  }
  if (!waited) WaitForEarlierKernels();
}

template <typename Shape>
__device__ __forceinline__ void DecodeRing<Shape>::Await() const {
  static_assert(kDecodeSlotsMax == 4);
  if (slots_ == 2) {
    WaitForCopies<1>();
  } else if (slots_ == 4) {
    WaitForCopies<3>();
  } else if (slots_ == 3) {
    WaitForCopies<2>();
  } else {
    WaitForCopies<0>();
  }
}

template <typename Shape>
__device__ __forceinline__ void DecodeRing<Shape>::Refill() {
  Load(load_ + slots_, slot_);
  ++load_;
  if (++slot_ == slots_) slot_ = 0;
}

}  // namespace kvcake::cuda
