// Attention of a tile by wgmma, for devices of compute capability 9.0: a warpgroup's 64 rows at
// once, by keys and values that it reads from shared memory itself. Device code of
// attention_cuda.cu.
//
// Two warpgroups take 64 rows of the tile each; two warps of a third copy keys and values by TMA,
// as fast as their memory becomes free, and leave their registers to the others. Blocks of keys are
// taken in pairs, so that a warpgroup waits half as often, and softmax has independent steps to do.
// Its products run in the order in which it enqueues them, which takes as long as they do: the
// scores of a pair, then the weights and values of the pair before. The warpgroups do this in turn,
// so that one's products run beside the other's softmax.
#pragma once

#include <cstdint>

#include "ops/attention_cuda_rows.cuh"
#include "ops/cuda_ring.cuh"

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
  static constexpr int kStages = 2;    // pairs of blocks of keys, and of values, in memory

 private:
  using Rows = TileRows<kDim, kOut>;
  using Values = typename Rows::Values;
  using Scores = typename Rows::Scores;
  using RowScales = typename Rows::RowScales;
  using Sums = typename Rows::Sums;

  static constexpr int kPair = 2 * kAttentionBlock;
  static_assert(kAttentionPartial % kPair == 0);

  // Keys, and values, are panels of 64 dimensions of some keys. A key's 64 dimensions are 128 bytes
  // in a row, whose eight pieces of 16 bytes are permuted by key % 8: the 128-byte swizzle of PTX's
  // manual. To it the keys' panels are K-major, the values' MN-major.
  static constexpr int kPanel = 64;  // dimensions
  static constexpr int kPanels = kDim / kPanel;
  static constexpr int kStageElements = kPair * kDim;
  static_assert(kDim % kPanel == 0);

  // Registers of a thread. A block begins with as many as are left by three warpgroups of a
  // multiprocessor's 65,536, in steps of 8; who takes more than others leave waits for ever.
  static constexpr int kBeginRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kCopyRegisters = 24, kComputeRegisters = 240;
  static_assert(kWarpgroups * kComputeRegisters + kCopyRegisters <=
                (kWarpgroups + 1) * kBeginRegisters);

  struct Shared {
    uint16_t keys[kStages][kStageElements];
    uint16_t values[kStages][kStageElements];
    // A warpgroup's own copy of a block's values, without infinities.
    uint16_t finite[kWarpgroups][kAttentionBlock * kDim];
    // What the partials before the one under way come to, where a tile has several.
    float4 totals[kWarpgroups][kOut / 8][kWarpgroupThreads];
    RowState total_rows[kWarpgroups][2][kWarpgroupThreads / 4];
    Barrier keys_full[kStages], values_full[kStages];
    Barrier keys_free[kStages], values_free[kStages];
    Barrier turn[kWarpgroups];  // of the warpgroups, to enqueue products
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
        // So the compiler sees that a warp has one, and that its loops are uniform.
        warpgroup_(__shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / kWarpgroupThreads, 0)),
        from_(max(task.partial, 0) * kAttentionPartial),
        pairs_((task.keys + kPair - 1) / kPair),
        first_position_(task.start + (task.row + warpgroup_ * kWarpgroupRows) / args.group) {}

  // To the end. All threads of the block.
  __device__ __forceinline__ void Run();

 private:
  // Some keys, or values, of a pair that lie beside each other in a page.
  struct Box {
    int in_pair;  // its first key
    int row;      // of the page
    int page;
    bool there;
  };

  __device__ __forceinline__ void Load(int plane) const;
  __device__ __forceinline__ void Copy(const Box& box, int plane, uint16_t* to,
                                       Barrier* full) const;
  __device__ __forceinline__ void Attend();
  // How many pairs, from the first on, all rows see all of, unless there is ALiBi.
  __device__ __forceinline__ int PlainPairs() const {
    return args_.slopes == nullptr ? min((first_position_ + 1 - from_) / kPair, pairs_) : 0;
  }
  template <bool kPlain>
  __device__ __forceinline__ void NextPair(const Rows& rows, int pair, RingPlace* place);
  __device__ __forceinline__ void Score(const RingPlace& place, Scores& lower, Scores& upper);
  // The scores of the pair from `block` on are enqueued, and kLeft groups behind them.
  template <bool kPlain, int kLeft>
  __device__ __forceinline__ RowScales Weigh(const Rows& rows, int block, const RingPlace& place,
                                             Scores& lower, Scores& upper);
  template <bool kPlain>
  __device__ __forceinline__ void AddValues(const Rows& rows, int block, const RingPlace& place);
  __device__ __forceinline__ void AddBlock(uint64_t values, uint4 (&weights)[4]);
  template <bool kPlain>
  __device__ __forceinline__ uint64_t ValuesToMultiply(const Rows& rows, int block,
                                                       const uint4 (&weights)[4],
                                                       const uint16_t* values);
  __device__ __forceinline__ uint64_t CopyFinite(const Rows& rows, int block, int first_hidden,
                                                 const uint4 (&weights)[4], const uint16_t* values);
  __device__ __forceinline__ void KeepPartial(bool first);
  __device__ __forceinline__ void AddTotal();
  __device__ __forceinline__ float4& TotalOf(int n) const {
    return shared_.totals[warpgroup_][n][threadIdx.x % kWarpgroupThreads];
  }
  // That of one of this thread's two rows; its four threads write the same.
  __device__ __forceinline__ RowState& TotalRow(int row) const {
    return shared_.total_rows[warpgroup_][row][threadIdx.x % kWarpgroupThreads / 4];
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

  // Where 8 dimensions of a key lie in panels of kKeys.
  template <int kKeys>
  static __device__ __forceinline__ int PieceOf(int key, int dim) {
    return dim / kPanel * kKeys * kPanel + key * kPanel + (dim / 8 ^ key) % 8 * 8;
  }
  // A matrix that begins at `first`, in panels of kKeys, for Wgmma: from eight of its keys to the
  // next it is 1,024 bytes.
  template <int kKeys>
  static __device__ __forceinline__ uint64_t Describe(const uint16_t* first) {
    constexpr uint32_t kSwizzle128 = 1;
    constexpr uint32_t kStride = 8 * kPanel * sizeof(uint16_t) / 16;
    constexpr uint32_t kPanelStride = kKeys * kPanel * sizeof(uint16_t) / 16;
    const uint32_t low = kPanelStride << 16 | (SharedAddress(first) & 0x3ffff) >> 4;
    const uint32_t high = kSwizzle128 << 30 | kStride;
    return uint64_t{high} << 32 | low;
  }
  // The matrix so many elements behind.
  static __device__ __forceinline__ uint64_t Behind(uint64_t matrix, int elements) {
    const uint32_t low = static_cast<uint32_t>(matrix) + elements * sizeof(uint16_t) / 16;
    return matrix >> 32 << 32 | low;
  }

  const AttentionArgs& args_;
  const TensorMap& pool_;
  const AttentionTask& task_;
  const int kv_head_;
  Shared& shared_;
  const int warpgroup_;
  const int from_;            // position of the first key
  const int pairs_;           // of blocks of keys; the last one's second may be of none
  const int first_position_;  // of this warpgroup's rows
  uint4 queries_[kDim / 16];
  uint4 lower_[4], upper_[4];  // weights of a pair's blocks
  RowScales between_;          // by what to scale the sums between its blocks
  bool scales_between_;        // for some row of the warpgroup that is not one
  Sums part_;
};

template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::Run() {
  const int rows = RowsOf(args_, task_);
  const int boxes = kPair / args_.box_tokens;  // of a pair: up to 8
  if (threadIdx.x == 0) {
    const int warps = (rows > kWarpgroupRows ? 2 : 1) * 4;  // that compute
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(&shared_.keys_full[stage], boxes);
      InitBarrier(&shared_.values_full[stage], boxes);
      InitBarrier(&shared_.keys_free[stage], warps);
      InitBarrier(&shared_.values_free[stage], warps);
    }
    for (Barrier& turn : shared_.turn) InitBarrier(&turn, 4);
    PublishBarriers();
  }
  __syncthreads();
  if (warpgroup_ == kWarpgroups) {
    LeaveRegisters<kCopyRegisters>();
    const int warp = static_cast<int>(threadIdx.x) % kWarpgroupThreads / 32;
    if (warp < 2 && static_cast<int>(threadIdx.x) % 32 < boxes) Load(warp);
  } else {
    TakeRegisters<kComputeRegisters>();
    if (warpgroup_ * kWarpgroupRows < rows) Attend();
  }
}

// ---- the warps that copy ----

// Copies keys (plane 0) or values (1): a warp each, as keys are wanted, and free again, a pair
// before the values are. Lane i copies the i-th box of each pair. Nothing that takes long lies
// between two copies: no division, and the page of a box has been read a pair before.
template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::Load(int plane) const {
  const int chunk_tokens = args_.chunk_tokens, keys = task_.keys;
  int key = static_cast<int>(threadIdx.x) % 32 * args_.box_tokens;
  const int in_pair = key, position = from_ + key;
  int token = position % chunk_tokens;  // of the page
  const PageId* next = args_.pages + task_.pages + position / chunk_tokens;
  PageId page = key < keys ? __ldg(next) : 0;
  Barrier* const full = plane == 0 ? shared_.keys_full : shared_.values_full;
  Barrier* const free = plane == 0 ? shared_.keys_free : shared_.values_free;
  uint16_t(*const stages)[kStageElements] = plane == 0 ? shared_.keys : shared_.values;
  static_assert(kStages == 2);
  RingPlace place;
  for (int pair = 0; pair < pairs_; ++pair, place.NextOfTwo()) {
    const Box box = {.in_pair = in_pair,
                     .row = kv_head_ * chunk_tokens + token,
                     .page = static_cast<int>(page),
                     .there = key < keys};
    key += kPair;
    token += kPair;
    while (token >= chunk_tokens) token -= chunk_tokens, ++next;
    if (key < keys) page = __ldg(next);
    AwaitPhase(&free[place.slot], place.phase ^ 1);
    Copy(box, plane, stages[place.slot], &full[place.slot]);
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
    CopyBox(to + (panel * kPair + box.in_pair) * kPanel, pool_,
            {panel * kPanel, box.row, plane, args_.layer, box.page}, full);
  }
}

// ---- the warpgroups that compute ----

template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::Attend() {
  const Rows rows(args_, task_, kv_head_, /*first_dim=*/0);
  rows.LoadQueries(queries_);
  part_.Clear();
  RingPlace place;
  {
    Scores lower, upper;
    Score(place, lower, upper);
    Weigh<false, 0>(rows, from_, place, lower, upper);
    Rows::Pack(lower, lower_);
    Rows::Pack(upper, upper_);
  }
  int pair = 1;
  for (const int end = PlainPairs(); pair < end; ++pair) NextPair<true>(rows, pair, &place);
  for (; pair < pairs_; ++pair) NextPair<false>(rows, pair, &place);
  AddValues<false>(rows, from_ + (pairs_ - 1) * kPair, place);
  WaitForWgmma<0>();
  PinSums(part_.values);
  FinishPart(part_.rows);
  if (pairs_ * kPair > kAttentionPartial) AddTotal();
  rows.Write(part_.values, part_.rows);
}

// Weighs the keys of a pair, and adds the values of the one before, which lie at *place. kPlain:
// all rows see all of both, and there is no ALiBi: the loop that most of the time goes to has no
// more code than it needs.
template <int kDimensions>
template <bool kPlain>
__device__ __forceinline__ void WgmmaTile<kDimensions>::NextPair(const Rows& rows, int pair,
                                                                 RingPlace* place) {
  const int block = from_ + pair * kPair;
  const RingPlace values = *place;
  place->NextOfTwo();
  Scores lower, upper;
  const bool in_turn = RowsOf(args_, task_) > kWarpgroupRows;
  if (in_turn) AwaitPhase(&shared_.turn[warpgroup_], (pair + warpgroup_) % 2);
  Score(*place, lower, upper);
  AddValues<kPlain>(rows, block - kPair, values);
  if (in_turn) Free(&shared_.turn[1 - warpgroup_]);
  if (block % kAttentionPartial == 0) {
    WaitForWgmma<0>();
    PinSums(part_.values);
    KeepPartial(block - from_ == kAttentionPartial);
  }
  const RowScales scales = Weigh<kPlain, 2>(rows, block, *place, lower, upper);
  WaitForWgmma<0>();
  PinSums(part_.values);
  Free(&shared_.values_free[values.slot]);
  Rows::Scale(scales, part_.values);
  Rows::Pack(lower, lower_);
  Rows::Pack(upper, upper_);
}

// Enqueues queries by the keys of a pair.
template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::Score(const RingPlace& place, Scores& lower,
                                                              Scores& upper) {
  // By indices: with iterators the compiler keeps the array in memory.
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) lower[n][i] = upper[n][i] = 0.0f;
  }
  AwaitPhase(&shared_.keys_full[place.slot], place.phase);
  PinSums(lower);
  BeginWgmma(queries_, upper);
  const uint64_t keys = Describe<kPair>(shared_.keys[place.slot]);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    Wgmma<false>(queries_[step], Behind(keys, step / 4 * kPair * kPanel + step % 4 * 16), lower,
                 upper);
  }
  CommitWgmma();
}

// Returns by what to scale what was summed before the pair; between_ is for between its blocks.
template <int kDimensions>
template <bool kPlain, int kLeft>
__device__ __forceinline__ typename WgmmaTile<kDimensions>::RowScales WgmmaTile<kDimensions>::Weigh(
    const Rows& rows, int block, const RingPlace& place, Scores& lower, Scores& upper) {
  WaitForWgmma<kLeft>();
  PinSums(lower);
  PinSums(upper);
  const RowScales scales =
      rows.template WeighPair<kPlain>(block, first_position_, lower, upper, part_.rows, &between_);
  scales_between_ = AnyOfWarpgroup(warpgroup_, between_.AreNotOne());
  // Nothing but this keeps the weights' arithmetic before the wait that follows, beside the
  // product.
  ArriveAfter(part_.rows[0].sum, part_.rows[1].sum, &shared_.keys_free[place.slot]);
  return scales;
}

// Enqueues the addition of a pair's weights by its values.
template <int kDimensions>
template <bool kPlain>
__device__ __forceinline__ void WgmmaTile<kDimensions>::AddValues(const Rows& rows, int block,
                                                                  const RingPlace& place) {
  AwaitPhase(&shared_.values_full[place.slot], place.phase);
  const uint16_t* const values = shared_.values[place.slot];
  AddBlock(ValuesToMultiply<kPlain>(rows, block, lower_, values), lower_);
  if (scales_between_) {
    WaitForWgmma<0>();
    PinSums(part_.values);
    Rows::Scale(between_, part_.values);
  }
  AddBlock(ValuesToMultiply<kPlain>(rows, block + kAttentionBlock, upper_,
                                    values + kAttentionBlock * kPanel),
           upper_);
}

template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::AddBlock(uint64_t values,
                                                                 uint4 (&weights)[4]) {
  BeginWgmma(weights, part_.values);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    Wgmma<true>(weights[step], Behind(values, step * 16 * kPanel), part_.values);
  }
  CommitWgmma();
}

// The block's values, or a copy of them: where some row does not see a key whose value is infinite
// or no number, those that do get it here, and the copy has zeros in its place. Behind the tile's
// last position the pages hold anything, and nobody sees it.
template <int kDimensions>
template <bool kPlain>
__device__ __forceinline__ uint64_t WgmmaTile<kDimensions>::ValuesToMultiply(
    const Rows& rows, int block, const uint4 (&weights)[4], const uint16_t* values) {
  const int first_hidden = max(first_position_ + 1 - block, 0);
  if (!kPlain && first_hidden < kAttentionBlock) {
    constexpr int kPieces = kOut / 8;
    bool finite = true;
    for (int i = first_hidden * kPieces + static_cast<int>(threadIdx.x) % kWarpgroupThreads;
         i < kAttentionBlock * kPieces; i += kWarpgroupThreads) {
      const uint16_t* const piece = values + PieceOf<kPair>(i / kPieces, i % kPieces * 8);
      finite = finite && IsFinite(*reinterpret_cast<const uint4*>(piece));
    }
    if (AnyOfWarpgroup(warpgroup_, !finite)) {
      return CopyFinite(rows, block, first_hidden, weights, values);
    }
  }
  return Describe<kPair>(values);
}

template <int kDimensions>
__device__ __forceinline__ uint64_t WgmmaTile<kDimensions>::CopyFinite(const Rows& rows, int block,
                                                                       int first_hidden,
                                                                       const uint4 (&weights)[4],
                                                                       const uint16_t* values) {
  // The block before may be under way, to the same sums and from the same copy.
  WaitForWgmma<0>();
  PinSums(part_.values);
  AnyOfWarpgroup(warpgroup_, false);
  rows.AddInfinite(block, first_hidden, weights, part_.values,
                   [values](int key, int dim) { return values + PieceOf<kPair>(key, dim); });
  uint16_t* const copy = shared_.finite[warpgroup_];
  constexpr int kPieces = kOut / 8;
  for (int i = static_cast<int>(threadIdx.x) % kWarpgroupThreads; i < kAttentionBlock * kPieces;
       i += kWarpgroupThreads) {
    const int key = i / kPieces, dim = i % kPieces * 8;
    const uint4 of = *reinterpret_cast<const uint4*>(values + PieceOf<kPair>(key, dim));
    *reinterpret_cast<uint4*>(copy + PieceOf<kAttentionBlock>(key, dim)) =
        key < first_hidden ? of : Finite(of);
  }
  PublishForWgmma();
  AnyOfWarpgroup(warpgroup_, false);
  return Describe<kAttentionBlock>(copy);
}

// ---- partials ----

// Adds the part to the total of those before it, and begins another; the `first` is the total.
template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::KeepPartial(bool first) {
  FinishPart(part_.rows);
  MergeScale scales[2] = {{0, 1}, {0, 1}};
  RowState totals[2] = {part_.rows[0], part_.rows[1]};
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (first) continue;
    totals[row] = TotalRow(row);
    scales[row] = MergeState(part_.rows[row], &totals[row]);
  }
  __syncwarp();  // the row's other threads have read it, too
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    TotalRow(row) = totals[row];
    part_.rows[row] = RowState();
  }
#pragma unroll
  for (int n = 0; n < kOut / 8; ++n) {
    float4& total = TotalOf(n);
    float(&part)[4] = part_.values[n];
    total = first ? float4{part[0], part[1], part[2], part[3]} : Merged(part, total, scales);
#pragma unroll
    for (int i = 0; i < 4; ++i) part[i] = 0.0f;
  }
}

template <int kDimensions>
__device__ __forceinline__ void WgmmaTile<kDimensions>::AddTotal() {
  MergeScale scales[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    RowState total = TotalRow(row);
    scales[row] = MergeState(part_.rows[row], &total);
    part_.rows[row] = total;
  }
#pragma unroll
  for (int n = 0; n < kOut / 8; ++n) {
    const float4 total = Merged(part_.values[n], TotalOf(n), scales);
    part_.values[n][0] = total.x;
    part_.values[n][1] = total.y;
    part_.values[n][2] = total.z;
    part_.values[n][3] = total.w;
  }
}

}  // namespace kvcake::cuda
