// Attention of a tile by wgmma.m64n64k16, for devices of compute capability 9.0: a warpgroup's 64
// rows at once, by keys and values that it reads from shared memory itself. Device code of
// attention_cuda.cu.
//
// Two warpgroups take 64 rows of the tile each, at their own pace; a third copies keys and values
// by TMA, as fast as their memory becomes free, and leaves its registers to the others. While a
// warpgroup weighs the keys of a block, the product of the weights and values before it is under
// way.
#pragma once

#include <cstdint>

#include "ops/attention_cuda_rows.cuh"

namespace kvcake::cuda {

// Heads of up to kDimensions dimensions; zeros fill them up.
template <int kDimensions>
class WgmmaTile {
 public:
  static constexpr bool kCompiled = kWgmmaCompiled;
  static constexpr int kDim = kDimensions, kOut = kDimensions;
  static constexpr int kTileRows = 128;
  static constexpr int kWarpgroups = 2, kWarpgroupRows = kTileRows / kWarpgroups;
  static constexpr int kWarpgroupThreads = 128;
  static constexpr int kThreads = (kWarpgroups + 1) * kWarpgroupThreads;
  static constexpr int kResident = 1;  // blocks of threads that registers allow
  static constexpr int kStages = 4;    // blocks of keys and values in memory

 private:
  using Rows = TileRows<kDim, kOut>;
  using Values = typename Rows::Values;
  using Sums = typename Rows::Sums;

  // A block's keys, and its values, are panels of 64 by 64 dimensions. A key's 64 dimensions are
  // 128 bytes in a row, whose eight pieces of 16 bytes are permuted by key % 8: the 128-byte
  // swizzle of PTX's manual. To it the keys' panels are K-major, the values' MN-major.
  static constexpr int kPanel = 64;  // dimensions
  static constexpr int kPanelElements = kAttentionBlock * kPanel;
  static constexpr int kPanels = kDim / kPanel;
  static constexpr int kBlockElements = kAttentionBlock * kDim;
  static_assert(kDim % kPanel == 0);

  // Registers of a thread. A block begins with as many as are left by three warpgroups of a
  // multiprocessor's 65,536, in steps of 8; who takes more than others leave waits for ever.
  static constexpr int kBeginRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kCopyRegisters = 24, kComputeRegisters = 240;
  static_assert(kWarpgroups * kComputeRegisters + kCopyRegisters <=
                (kWarpgroups + 1) * kBeginRegisters);

  struct Shared {
    uint16_t keys[kStages][kBlockElements];
    uint16_t values[kStages][kBlockElements];
    // A warpgroup's own copy of a block's values, without infinities.
    uint16_t finite[kWarpgroups][kBlockElements];
    // What the partials before the one under way come to, where a tile has several.
    float4 totals[kWarpgroups][kOut / 8][kWarpgroupThreads];
    Barrier keys_full[kStages], values_full[kStages];
    Barrier keys_free[kStages], values_free[kStages];
  };

 public:
  static constexpr int kBytes = sizeof(Shared);

  // `shared`: kBytes.
  __device__ __forceinline__ WgmmaTile(const AttentionArgs& args, const TensorMap& pool,
                                       const AttentionTask& task, int kv_head, int /*first_dim*/,
                                       std::byte* shared)
      : args_(args),
        pool_(pool),
        task_(task),
        kv_head_(kv_head),
        shared_(*reinterpret_cast<Shared*>(shared)),
        from_(max(task.partial, 0) * kAttentionPartial),
        blocks_((task.keys + kAttentionBlock - 1) / kAttentionBlock) {}

  // To the end. All threads of the block.
  __device__ __forceinline__ void Run();

 private:
  // How often each of a ring's places has been waited for: its barrier's phase.
  struct Place {
    int stage = 0;
    uint32_t phase = 0;

    __device__ __forceinline__ void Next() {
      if (++stage < kStages) return;
      stage = 0;
      phase ^= 1;
    }
  };

  // Some keys, or values, of a block that lie beside each other in a page.
  struct Box {
    int in_block;  // its first key
    int row;       // of the page
    int page;
    bool there;
  };

  __device__ __forceinline__ void Load() const;
  __device__ __forceinline__ void Copy(const Box& box, int plane, uint16_t* to,
                                       Barrier* full) const;
  __device__ __forceinline__ void Attend(int warpgroup);
  __device__ __forceinline__ const uint16_t* ValuesToMultiply(const Rows& rows, int block,
                                                              int first_position,
                                                              const uint4 (&weights)[4],
                                                              const uint16_t* values,
                                                              int warpgroup);
  __device__ __forceinline__ void KeepPartial(int warpgroup, bool first, RowState (&rows)[2]);
  __device__ __forceinline__ void AddTotal(int warpgroup);
  __device__ __forceinline__ float4& TotalOf(int warpgroup, int n) const {
    return shared_.totals[warpgroup][n][threadIdx.x % kWarpgroupThreads];
  }
  static __device__ __forceinline__ float4 Merged(const float (&part)[4], const float4& total,
                                                  const MergeScale (&scales)[2]) {
    return {MergeValue(part[0], total.x, scales[0]), MergeValue(part[1], total.y, scales[0]),
            MergeValue(part[2], total.z, scales[1]), MergeValue(part[3], total.w, scales[1])};
  }
  // Lets the warp that copies fill it again.
  static __device__ __forceinline__ void Free(Barrier* barrier) {
    if (threadIdx.x % 32 == 0) Arrive(barrier);
  }

  __device__ __forceinline__ void Score(const uint16_t* keys, typename Rows::Scores& scores);
  static __device__ __forceinline__ void AddValues(const uint16_t* values, uint4 (&weights)[4],
                                                   Values& sums);
  // Where 8 dimensions of a key lie in its panels.
  static __device__ __forceinline__ int PieceOf(int key, int dim) {
    return dim / kPanel * kPanelElements + key * kPanel + (dim / 8 ^ key) % 8 * 8;
  }
  // A matrix that lies in one panel, for Wgmma: from eight of its keys to the next it is 1,024
  // bytes, and nowhere else does it stride. It begins `offset` elements behind `first`, as adding
  // to a descriptor is cheaper than making one.
  static __device__ __forceinline__ uint64_t Describe(const uint16_t* first, int offset) {
    constexpr uint32_t kSwizzle128 = 1;
    constexpr uint32_t kStride = 8 * kPanel * sizeof(uint16_t) / 16;
    const uint32_t low = kStride << 16 | (SharedAddress(first) & 0x3ffff) >> 4;
    const uint32_t high = kSwizzle128 << 30 | kStride;
    return uint64_t{high} << 32 | (low + offset * static_cast<int>(sizeof(uint16_t)) / 16);
  }

  const AttentionArgs& args_;
  const TensorMap& pool_;
  const AttentionTask& task_;
  const int kv_head_;
  Shared& shared_;
  const int from_;    // position of the first key
  const int blocks_;  // of keys
  uint4 queries_[kDim / 16];
  Sums part_;
  RowState total_[2];
};

template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::Run() {
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroupThreads;
  const int rows = RowsOf(args_, task_);
  const int boxes = kAttentionBlock / args_.box_tokens;  // of a block: up to 4
  if (threadIdx.x == 0) {
    const int warps = (rows > kWarpgroupRows ? 2 : 1) * 4;  // that compute
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(&shared_.keys_full[stage], boxes);
      InitBarrier(&shared_.values_full[stage], boxes);
      InitBarrier(&shared_.keys_free[stage], warps);
      InitBarrier(&shared_.values_free[stage], warps);
    }
    PublishBarriers();
  }
  __syncthreads();
  if (warpgroup == kWarpgroups) {
    LeaveRegisters<kCopyRegisters>();
    if (static_cast<int>(threadIdx.x) % kWarpgroupThreads < boxes) Load();
  } else {
    TakeRegisters<kComputeRegisters>();
    if (warpgroup * kWarpgroupRows < rows) Attend(warpgroup);
  }
}

// ---- the warp that copies ----

// Lane i copies the i-th box of each block. Nothing that takes long lies between two copies: no
// division, and the page of a box has been read a block before.
template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::Load() const {
  const int chunk_tokens = args_.chunk_tokens, keys = task_.keys;
  int key = static_cast<int>(threadIdx.x) % kWarpgroupThreads * args_.box_tokens;
  const int in_block = key, position = from_ + key;
  int token = position % chunk_tokens;  // of the page
  const PageId* next = args_.pages + task_.pages + position / chunk_tokens;
  PageId page = key < keys ? __ldg(next) : 0;
  Place place;
  for (int block = 0; block < blocks_; ++block, place.Next()) {
    const Box box = {.in_block = in_block,
                     .row = kv_head_ * chunk_tokens + token,
                     .page = static_cast<int>(page),
                     .there = key < keys};
    key += kAttentionBlock;
    token += kAttentionBlock;
    while (token >= chunk_tokens) token -= chunk_tokens, ++next;
    if (key < keys) page = __ldg(next);
    const int stage = place.stage;
    AwaitPhase(&shared_.keys_free[stage], place.phase ^ 1);
    Copy(box, 0, shared_.keys[stage], &shared_.keys_full[stage]);
    AwaitPhase(&shared_.values_free[stage], place.phase ^ 1);
    Copy(box, 1, shared_.values[stage], &shared_.values_full[stage]);
  }
}

// Enqueues copies of a box's keys (plane 0) or values (1). What lies behind the last of the tile's
// positions may be anything, and where it would be in another box, it is what was there before.
template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::Copy(const Box& box, int plane,
                                                             uint16_t* to, Barrier* full) const {
  constexpr int kTokenBytes = kDim * static_cast<int>(sizeof(uint16_t));
  if (!box.there) {
    Arrive(full);
    return;
  }
  Expect(full, args_.box_tokens * kTokenBytes);
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    CopyBox(to + panel * kPanelElements + box.in_block * kPanel, pool_,
            {panel * kPanel, box.row, plane, args_.layer, box.page}, full);
  }
}

// ---- the warpgroups that compute ----

template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::Attend(int warpgroup) {
  const Rows rows(args_, task_, kv_head_, /*first_dim=*/0);
  const int first_position = rows.PositionOf(warpgroup * kWarpgroupRows);
  rows.LoadQueries(queries_);
  part_.Clear();
  uint4 weights[4];
  Place place;
  {
    typename Rows::Scores scores;
    AwaitPhase(&shared_.keys_full[0], 0);
    Score(shared_.keys[0], scores);
    WaitForWgmma<0>();
    PinSums(scores);
    Free(&shared_.keys_free[0]);
    rows.Weigh(from_, first_position, scores, part_.rows);
    Rows::Pack(scores, weights);
  }
  bool first = true;  // partial
  int block = from_;
  for (int left = blocks_ - 1; left > 0; --left) {
    const Place values = place;
    place.Next();
    typename Rows::Scores scores;
    AwaitPhase(&shared_.keys_full[place.stage], place.phase);
    Score(shared_.keys[place.stage], scores);
    AwaitPhase(&shared_.values_full[values.stage], values.phase);
    const uint16_t* const finite = ValuesToMultiply(rows, block, first_position, weights,
                                                    shared_.values[values.stage], warpgroup);
    AddValues(finite, weights, part_.values);
    WaitForWgmma<1>();
    PinSums(scores);
    block += kAttentionBlock;
    const bool begins = block % kAttentionPartial == 0;
    RowState before[2] = {part_.rows[0], part_.rows[1]};
    if (begins) part_.rows[0] = part_.rows[1] = RowState();
    const auto scales = rows.Weigh(block, first_position, scores, part_.rows);
    // Nothing but this keeps the weights' arithmetic before the wait, beside the product.
    ArriveAfter(part_.rows[0].sum, part_.rows[1].sum, &shared_.keys_free[place.stage]);
    WaitForWgmma<0>();
    PinSums(part_.values);
    Free(&shared_.values_free[values.stage]);
    if (begins) {
      KeepPartial(warpgroup, first, before);
      first = false;
    } else {
      Rows::Scale(scales, part_.values);
    }
    Rows::Pack(scores, weights);
  }
  AwaitPhase(&shared_.values_full[place.stage], place.phase);
  const uint16_t* const finite = ValuesToMultiply(rows, block, first_position, weights,
                                                  shared_.values[place.stage], warpgroup);
  AddValues(finite, weights, part_.values);
  WaitForWgmma<0>();
  PinSums(part_.values);
  FinishPart(part_.rows);
  if (!first) AddTotal(warpgroup);
  rows.Write(part_.values, part_.rows);
}

// The block's values, or a copy of them: where some row does not see a key whose value is infinite
// or no number, those that do get it here, and the copy has zeros in its place. Behind the tile's
// last position the pages hold anything, and nobody sees it.
template <int kDimensions>
__device__ __forceinline__ const uint16_t* WgmmaTile<kDimensions>::ValuesToMultiply(
    const Rows& rows, int block, int first_position, const uint4 (&weights)[4],
    const uint16_t* values, int warpgroup) {
  const int first_hidden = max(first_position + 1 - block, 0);
  if (first_hidden >= kAttentionBlock) return values;
  constexpr int kPieces = kOut / 8;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  bool finite = true;
  for (int i = first_hidden * kPieces + thread; i < kAttentionBlock * kPieces;
       i += kWarpgroupThreads) {
    const uint16_t* const piece = values + PieceOf(i / kPieces, i % kPieces * 8);
    finite = finite && IsFinite(*reinterpret_cast<const uint4*>(piece));
  }
  if (!AnyOfWarpgroup(warpgroup, !finite)) return values;
  rows.AddInfinite(block, first_hidden, weights, part_.values,
                   [values](int key, int dim) { return values + PieceOf(key, dim); });
  uint16_t* const copy = shared_.finite[warpgroup];
  for (int i = thread; i < kAttentionBlock * kPieces; i += kWarpgroupThreads) {
    const int key = i / kPieces, piece = PieceOf(key, i % kPieces * 8);
    const uint4 of = *reinterpret_cast<const uint4*>(values + piece);
    *reinterpret_cast<uint4*>(copy + piece) = key < first_hidden ? of : Finite(of);
  }
  PublishForWgmma();
  AnyOfWarpgroup(warpgroup, false);
  return copy;
}

// Adds the part, whose rows are given, to the total of those before it, and begins another.
template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::KeepPartial(int warpgroup, bool first,
                                                                    RowState (&rows)[2]) {
  FinishPart(rows);
  MergeScale scales[2] = {{0, 1}, {0, 1}};
  for (int row = 0; row < 2; ++row) {
    if (first) {
      total_[row] = rows[row];
    } else {
      scales[row] = MergeState(rows[row], &total_[row]);
    }
  }
#pragma unroll
  for (int n = 0; n < kOut / 8; ++n) {
    float4& total = TotalOf(warpgroup, n);
    float(&part)[4] = part_.values[n];
    total = first ? float4{part[0], part[1], part[2], part[3]} : Merged(part, total, scales);
    for (float& value : part) value = 0.0f;
  }
}

template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::AddTotal(int warpgroup) {
  const MergeScale scales[2] = {MergeState(part_.rows[0], &total_[0]),
                                MergeState(part_.rows[1], &total_[1])};
#pragma unroll
  for (int n = 0; n < kOut / 8; ++n) {
    const float4 total = Merged(part_.values[n], TotalOf(warpgroup, n), scales);
    part_.values[n][0] = total.x;
    part_.values[n][1] = total.y;
    part_.values[n][2] = total.z;
    part_.values[n][3] = total.w;
  }
  part_.rows[0] = total_[0];
  part_.rows[1] = total_[1];
}

// ---- products ----

// Enqueues queries by keys.
template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::Score(const uint16_t* keys,
                                                              typename Rows::Scores& scores) {
  // By indices: with iterators the compiler keeps the array in memory.
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
  }
  BeginWgmma(queries_, scores);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    Wgmma<false>(queries_[step], Describe(keys, step / 4 * kPanelElements + step % 4 * 16), scores);
  }
  CommitWgmma();
}

// Enqueues the addition of weights by values.
template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::AddValues(const uint16_t* values,
                                                                  uint4 (&weights)[4],
                                                                  Values& sums) {
  BeginWgmma(weights, sums);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      Wgmma<true>(weights[step], Describe(values, panel * kPanelElements + step * 16 * kPanel),
                  sums + panel * 8);
    }
  }
  CommitWgmma();
}

}  // namespace kvcake::cuda
