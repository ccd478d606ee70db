// The kernel of matmul_cuda_few.h. Weights come once, by copies to shared memory of which so many
// are under way at any time that memory is kept busy. Each lane copies what it multiplies, 16 bytes
// of two rows, a quarter of 32 columns: it waits for nobody. What enters is loaded by the same
// pattern, so both sides of a product have the same columns in the same places.
//
// Every sum is of kChains parts of k, added up in ascending order; a part is one chain of
// multiply-adds. Which warps and blocks compute the parts is a matter of speed alone.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda_activations.cuh"
#include "ops/cuda_instructions.cuh"
#include "ops/cuda_warp.cuh"
#include "ops/matmul_cuda_few.h"

namespace kvcake::cuda {

constexpr int kChains = 4;
constexpr int kStepK = 32;     // columns of one load: two products' 16
constexpr int kSlabRows = 16;  // rows of the weights that a warp multiplies
constexpr int kTokenTile = 8;  // rows that enter

// How a block does its part. kTokenTilesOf: of the rows that enter, all of them. kRowWarpsOf: each
// has a slab. kChainWarpsOf: kChains, each has a chain of the same slab; or 1, a warp has a whole
// chain, or with kSplitOf false all of them in turn. kDepthOf: steps whose weights are under way.
// kRoundOf: steps whose activations are copied together. kBlocksOf: at once on a multiprocessor, as
// far as registers go.
template <int kTokenTilesOf, int kRowWarpsOf, int kChainWarpsOf, bool kSplitOf, int kDepthOf,
          int kRoundOf, int kBlocksOf>
struct FewRowsTuning {
  static constexpr int kTokenTiles = kTokenTilesOf, kRowWarps = kRowWarpsOf;
  static constexpr int kChainWarps = kChainWarpsOf, kDepth = kDepthOf, kRound = kRoundOf;
  static constexpr int kBlocks = kBlocksOf;
  static constexpr bool kSplit = kSplitOf;

  static constexpr int kThreads = kRowWarps * kChainWarps * kWarp;
  static constexpr int kChainBlocks = kSplit ? kChains : 1;
  static constexpr int kChainsInTurn = kChains / kChainBlocks / kChainWarps;
  static constexpr int kTileRows = kRowWarps * kSlabRows;  // of the weights
  static constexpr int kWeightBytes = kThreads * kDepth * 32;
  static constexpr int kRoundK = kRound * kStepK;
  // A token's columns of one round, and a gap: neighbours are read without bank conflicts.
  static constexpr int kLineBytes = (kRoundK + kStepK) * 2;
  static constexpr int kStages = kDepth / kRound + 1;  // as early as the weights, and the one used
  // A stage's lines: of whole tiles, or of the tokens that are there, if one tile is all.
  __host__ __device__ static constexpr int Lines(int rows) {
    return kChainWarps * (kTokenTiles == 1 ? rows : kTokenTiles * kTokenTile);
  }
  __host__ __device__ static constexpr int SharedBytes(int rows) {
    return kWeightBytes + kStages * Lines(rows) * kLineBytes;
  }

  static_assert(kChainWarps == 1 || (kChainWarps == kChains && !kSplit));
  static_assert(kRound % 2 == 0 && kDepth % kRound == 0 && kThreads % (kRoundK / 8) == 0);
  static_assert(kChainWarps == 1 || kTokenTiles * 16 <= kDepth * 32,
                "the chains of a block's warps have room where the weights were");
};

struct FewRowsProduct {
  const uint16_t* a;  // [rows][a_stride]
  const uint16_t* w;  // [n][k]
  const float* bias;  // [n], or nullptr
  int64_t a_stride;
  int rows, n, k;
  ProductOut out;
  // Where a sum's chains are of several blocks: the chains, and for each tile how many have come,
  // which is 0 between kernels.
  float4* partials = nullptr;
  unsigned* arrived = nullptr;

  __device__ int chain_k() const {  // columns of a chain; the last ones may have none
    return (k + kChains * kStepK - 1) / (kChains * kStepK) * kStepK;
  }
};

// What a lane has of a slab: two of its columns of the result, which SwiGLU makes one.
class ResultColumns {
 public:
  __device__ ResultColumns(const FewRowsProduct& p, int slab, int group)
      : p_(p),
        gated_(p.out.kind == ProductOut::Kind::kSwiGlu),
        low_(gated_ ? slab * kSlabRows / 2 + group : slab * kSlabRows + group),
        high_(gated_ ? p.n / 2 + low_ : low_ + kSlabRows / 2) {}

  // The rows of the weights: of those beyond the last, the last.
  __device__ const uint16_t* Weights(bool high) const {
    const int row = min(high ? high_ : low_, p_.n - 1);
    return p_.w + static_cast<int64_t>(row) * p_.k;
  }

  // What is there before, where the result is added to it.
  __device__ void LoadOld(int token, float (&old)[2]) const {
    old[0] = old[1] = 0;
    if (p_.out.kind != ProductOut::Kind::kAdd || token >= p_.rows) return;
    const float* row = static_cast<const float*>(p_.out.data) + token * p_.out.stride;
    if (low_ < p_.n) old[0] = row[low_];
    if (high_ < p_.n) old[1] = row[high_];
  }

  __device__ void Store(int token, float low, float high, const float (&old)[2]) const {
    if (token >= p_.rows) return;
    const int64_t at = token * p_.out.stride;
    if (p_.out.kind == ProductOut::Kind::kSwiGlu) {
      if (low_ >= p_.n / 2) return;
      Bf16Out()[at + low_] =
          __float2bfloat16_rn(Biased(high_, Rounded(high)) * SiluOf(Biased(low_, Rounded(low))));
      return;
    }
    StoreOne(at, low_, low, old[0]);
    StoreOne(at, high_, high, old[1]);
  }

 private:
  __device__ static float Rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
  __device__ float Biased(int column, float x) const {
    return p_.bias == nullptr ? x : x + p_.bias[column];
  }
  __device__ __nv_bfloat16* Bf16Out() const { return static_cast<__nv_bfloat16*>(p_.out.data); }

  __device__ void StoreOne(int64_t at, int column, float sum, float old) const {
    if (column >= p_.n) return;
    if (p_.out.kind == ProductOut::Kind::kGelu) {
      Bf16Out()[at + column] = __float2bfloat16_rn(GeluOf(Biased(column, Rounded(sum))));
      return;
    }
    float* to = static_cast<float*>(p_.out.data) + at + column;
    const float value = Biased(column, sum);
    *to = p_.out.kind == ProductOut::Kind::kAdd ? old + value : value;
  }

  const FewRowsProduct& p_;
  const bool gated_;
  const int low_, high_;
};

// A block's warps, which take rounds of T::kRound steps, chain after chain.
template <typename T>
class FewRowsBlock {
 public:
  __device__ FewRowsBlock(const FewRowsProduct& p, uint4* shared)
      : p_(p),
        shared_(shared),
        lines_(reinterpret_cast<char*>(shared) + T::kWeightBytes),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        tile_(static_cast<int>(blockIdx.x) / T::kChainBlocks),
        first_chain_(static_cast<int>(blockIdx.x) % T::kChainBlocks),
        rounds_((p.chain_k() + T::kRoundK - 1) / T::kRoundK),
        columns_(p, tile_ * T::kRowWarps + warp_ / T::kChainWarps, lane_ / 4) {}

  __device__ void Run() {
    LetNextKernelStart();
    const int chain = T::kChainWarps > 1 ? warp_ % kChains : first_chain_;
    weights_at_ = {chain * p_.chain_k(), 0};
    lines_at_ = {T::kChainWarps > 1 ? 0 : chain * p_.chain_k(), 0};
#pragma unroll
    for (int round = 0; round < kRoundsAhead; ++round) {
      const RoundWeights weights = NextWeights();
#pragma unroll
      for (int step = 0; step < T::kRound; ++step) {
        CopyWeights(weights, step, round * T::kRound + step);
        CommitCopies();
      }
    }
    WaitForEarlierKernels();  // nothing writes weights: their copies are under way
    LoadFirstLines();
    float old[kOwned][2];  // asked for early
    if constexpr (T::kChainWarps > 1) {
#pragma unroll
      for (int i = 0; i < kOwned; ++i) columns_.LoadOld(OwnedToken(i), old[i]);
    }
    Multiply();
    if constexpr (T::kChainWarps > 1) {
      AddChainsOfWarps(old);
    } else if constexpr (T::kSplit) {
      AddChainsOfBlocks();
    } else {
      StoreTotals();
    }
  }

 private:
  static constexpr int kTiles = T::kTokenTiles;
  static constexpr int kRoundsAhead = T::kDepth / T::kRound;
  static constexpr int kOwned = (2 * kTiles + kChains - 1) / kChains;

  // Where a round begins: in k, and from there.
  struct Place {
    int chain_at = 0, at = 0;
  };
  // Columns of a chain that are there.
  __device__ int Columns(int chain_at) const { return min(p_.chain_k(), p_.k - chain_at); }
  __device__ void Advance(Place* place) const {
    place->at += T::kRoundK;
    if (T::kChainsInTurn > 1 && place->at == rounds_ * T::kRoundK) {
      *place = {place->chain_at + p_.chain_k(), 0};  // past the last chain nothing is there
    }
  }

  // A lane's weights of a round.
  struct RoundWeights {
    const uint16_t *low, *high;
    int columns;  // that are there from here on
  };
  __device__ RoundWeights NextWeights() {
    const int quarter = lane_ % 4 * 8, at = weights_at_.chain_at + weights_at_.at + quarter;
    const RoundWeights weights = {columns_.Weights(false) + at, columns_.Weights(true) + at,
                                  Columns(weights_at_.chain_at) - weights_at_.at - quarter};
    Advance(&weights_at_);
    return weights;
  }

  // A lane's low and high row of one of the steps under way.
  __device__ uint4* Slot(int slot) const {
    return shared_ + (warp_ * T::kDepth + slot) * 2 * kWarp + lane_;
  }
  __device__ void CopyWeights(const RoundWeights& weights, int step, int slot) const {
    const bool there = step * kStepK < weights.columns;
    CopyAsync(Slot(slot), there ? weights.low + step * kStepK : p_.w, there);
    CopyAsync(Slot(slot) + kWarp, there ? weights.high + step * kStepK : p_.w, there);
  }

  __device__ char* Line(int stage, int chain_warp, int token) const {
    const int tokens = T::Lines(p_.rows) / T::kChainWarps;
    return lines_ + ((stage * T::kChainWarps + chain_warp) * tokens + token) * T::kLineBytes;
  }
  // Where a lane's columns of its tokens begin. Of tokens beyond the last, whose sums nobody wants,
  // it reads whatever is there.
  __device__ const char* LaneLine(int stage) const {
    const int token = kTiles == 1 ? min(lane_ / 4, p_.rows - 1) : lane_ / 4;
    return Line(stage, warp_ % T::kChainWarps, token) + lane_ % 4 * 16;
  }

  // A thread's pieces of 16 bytes of a round's lines: the same one of some lines.
  static constexpr int kPieces = T::kRoundK / 8;  // of a line
  static constexpr int kLinesAtOnce = T::kThreads / kPieces;
  struct Piece {
    uint16_t* to;
    const uint16_t* from;
    bool there;
  };
  __device__ Piece PieceOf(int stage, int line) const {
    const int chain_warp = line % T::kChainWarps, token = line / T::kChainWarps;
    const int piece = static_cast<int>(threadIdx.x) % kPieces * 8, at = lines_at_.at + piece;
    const int chain_at = lines_at_.chain_at + chain_warp * p_.chain_k();
    const bool there = at < Columns(chain_at);
    return {reinterpret_cast<uint16_t*>(Line(stage, chain_warp, token)) + piece,
            p_.a + token * p_.a_stride + (there ? chain_at + at : 0), there};
  }

  // The activations of the next round.
  __device__ void CopyLines(int stage) {
    for (int line = static_cast<int>(threadIdx.x) / kPieces; line < p_.rows * T::kChainWarps;
         line += kLinesAtOnce) {
      const Piece piece = PieceOf(stage, line);
      CopyAsync(piece.to, piece.from, piece.there);
    }
    Advance(&lines_at_);
  }

  // Those of the first rounds, whose weights have been asked for before: not by copies, which would
  // be waited for together with the weights.
  __device__ void LoadFirstLines() {
    constexpr int kPasses =
        (T::kChainWarps * kTiles * kTokenTile + kLinesAtOnce - 1) / kLinesAtOnce;
    uint4 values[kRoundsAhead][kPasses];
    const Place first = lines_at_;
    const auto for_each = [&](const auto& use) {
      lines_at_ = first;
#pragma unroll
      for (int round = 0; round < kRoundsAhead; ++round, Advance(&lines_at_)) {
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          const int line = pass * kLinesAtOnce + static_cast<int>(threadIdx.x) / kPieces;
          if (line < p_.rows * T::kChainWarps) use(PieceOf(round, line), &values[round][pass]);
        }
      }
    };
    for_each([](const Piece& piece, uint4* value) {
      *value = piece.there ? *reinterpret_cast<const uint4*>(piece.from) : uint4{0, 0, 0, 0};
    });
    for_each([](const Piece& piece, const uint4* value) {
      *reinterpret_cast<uint4*>(piece.to) = *value;
    });
  }

  __device__ void MultiplyStep(const uint4* slot, const char* line) {
    const uint4 low = slot[0], high = slot[kWarp];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 x = *reinterpret_cast<const uint4*>(line + tile * kTokenTile * T::kLineBytes);
      MultiplyAdd(uint4{low.x, high.x, low.y, high.y}, x.x, x.y, sums_[tile]);
      MultiplyAdd(uint4{low.z, high.z, low.w, high.w}, x.z, x.w, sums_[tile]);
    }
  }

  // Each step commits the copies of the weights kDepth steps ahead. Those of the activations, which
  // are as far ahead, are of the first step of their round.
  __device__ void Multiply() {
    int stage = 0, slot = 0;
    for (int chain = 0; chain < T::kChainsInTurn; ++chain) {
      for (int round = 0; round < rounds_; ++round) {
        WaitForCopies<T::kDepth - 1>();
        __syncthreads();  // this round's lines are there, and those before it have been read
        CopyLines(stage == 0 ? T::kStages - 1 : stage - 1);
        const RoundWeights weights = NextWeights();
        const char* line = LaneLine(stage);
#pragma unroll
        for (int step = 0; step < T::kRound; ++step) {
          if (step > 0) WaitForCopies<T::kDepth - 1>();
          MultiplyStep(Slot(slot + step), line + step * kStepK * 2);
          CopyWeights(weights, step, slot + step);
          CommitCopies();
        }
        stage = stage + 1 == T::kStages ? 0 : stage + 1;
        slot = slot + T::kRound == T::kDepth ? 0 : slot + T::kRound;
      }
      if constexpr (T::kChainsInTurn > 1) EndChain(chain == 0);
    }
  }

  __device__ void EndChain(bool first) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        totals_[tile][i] = first ? sums_[tile][i] : totals_[tile][i] + sums_[tile][i];
        sums_[tile][i] = 0;
      }
    }
  }

  __device__ int Token(int tile, int i) const { return tile * kTokenTile + lane_ % 4 * 2 + i; }

  // What is there before is loaded some tiles ahead of the stores.
  __device__ void StoreTotals() {
    constexpr int kAtOnce = kTiles < 2 ? kTiles : 2;
#pragma unroll
    for (int first = 0; first < kTiles; first += kAtOnce) {
      float old[2 * kAtOnce][2];
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; ++i) columns_.LoadOld(Token(first + i / 2, i % 2), old[i]);
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; ++i) {
        const float* totals = totals_[first + i / 2];
        columns_.Store(Token(first + i / 2, i % 2), totals[i % 2], totals[i % 2 + 2], old[i]);
      }
    }
  }

  // Pairs of a slab's sums are shared among its chain warps.
  __device__ int OwnedPair(int i) const { return i * kChains + warp_ % kChains; }
  __device__ int OwnedToken(int i) const { return Token(OwnedPair(i) / 2, OwnedPair(i) % 2); }

  __device__ void AddChainsOfWarps(const float (&old)[kOwned][2]) {
    auto* shared = reinterpret_cast<float*>(shared_);  // [row_warps][kChains][4 * kTiles][kWarp]
    WaitForCopies<0>();                                // of zeros beyond the end
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      shared[(warp_ * 4 * kTiles + i) * kWarp + lane_] = sums_[i / 4][i % 4];
    }
    __syncthreads();
    const float* slab = shared + warp_ / kChains * kChains * 4 * kTiles * kWarp + lane_;
    const auto sum = [slab](int i) {
      float total = slab[i * kWarp];
#pragma unroll
      for (int chain = 1; chain < kChains; ++chain) {
        total += slab[(chain * 4 * kTiles + i) * kWarp];
      }
      return total;
    };
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const int pair = OwnedPair(i), at = pair / 2 * 4 + pair % 2;
      if (pair < 2 * kTiles) columns_.Store(OwnedToken(i), sum(at), sum(at + 2), old[i]);
    }
  }

  // The block that comes last adds up the chains of all.
  __device__ void AddChainsOfBlocks() {
    constexpr int kThreads = T::kThreads;
    float4* const chains = p_.partials + static_cast<int64_t>(tile_) * kChains * kTiles * kThreads;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float* sums = sums_[tile];
      __stcg(&chains[(first_chain_ * kTiles + tile) * kThreads + threadIdx.x],
             float4{sums[0], sums[1], sums[2], sums[3]});
    }
    __threadfence();
    __syncthreads();
    const bool last =
        threadIdx.x == 0 && atomicAdd(&p_.arrived[tile_], 1u) == static_cast<unsigned>(kChains - 1);
    if (!__syncthreads_or(last)) return;
    __threadfence();
    if (threadIdx.x == 0) p_.arrived[tile_] = 0;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float4 total = __ldcg(&chains[tile * kThreads + threadIdx.x]);
#pragma unroll
      for (int chain = 1; chain < kChains; ++chain) {
        const float4 more = __ldcg(&chains[(chain * kTiles + tile) * kThreads + threadIdx.x]);
        total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
      }
      totals_[tile][0] = total.x;
      totals_[tile][1] = total.y;
      totals_[tile][2] = total.z;
      totals_[tile][3] = total.w;
    }
    StoreTotals();
  }

  const FewRowsProduct& p_;
  uint4* const shared_;
  char* const lines_;
  const int warp_, lane_, tile_, first_chain_, rounds_;
  const ResultColumns columns_;
  Place weights_at_, lines_at_;
  float sums_[kTiles][4] = {};
  float totals_[kTiles][4];  // of the chains before
};

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    MultiplyFewRowsKernel(const __grid_constant__ FewRowsProduct product) {
  FewRowsBlock<T> block(product, DynamicShared<uint4>());
  block.Run();
}

}  // namespace kvcake::cuda
