// Several blocks look for a row's likeliest token; the last of them to end chooses. Amounts are
// whole numbers, so their sums are the same in whatever order the threads add them up.
#include <algorithm>

#include "ops/buffer.h"
#include "ops/cuda_instructions.cuh"
#include "ops/cuda_kernels.h"
#include "ops/cuda_launch.h"
#include "ops/cuda_warp.cuh"
#include "ops/sample_inl.h"

namespace kvcake::cuda {
namespace {

constexpr int kWarps = 32;
constexpr int kThreads = kWarps * kWarp;
constexpr int kDigitBits = 10;
constexpr int kDigits = 1 << kDigitBits;
static_assert(kDigits == kThreads, "each thread clears one");

// What the threads of a block share.
struct Shared {
  uint64_t warps[kWarps];
  // Sums of amounts by a digit of their logits' keys: atomic additions of 32 bits are fast.
  uint32_t low[kDigits];
  uint32_t high[kDigits];
};

__device__ uint64_t WarpMax(uint64_t value) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffff, value, lanes);
    if (other > value) value = other;
  }
  return value;
}

// Shows every thread of the block each warp's value, of which lane 0's counts.
__device__ void ShareWarps(uint64_t value, Shared& shared) {
  __syncthreads();  // those before have been read
  if (threadIdx.x % kWarp == 0) shared.warps[threadIdx.x / kWarp] = value;
  __syncthreads();
}

// The first of n indices at which the running sum of amount(index) reaches *units, which is at
// least 1 and at most the sum of all; takes off *units what is before it. Each warp adds up a part,
// and the part that reaches them is divided again.
template <typename Amount>
__device__ int IndexThatReaches(uint64_t* units, int n, const Amount& amount, Shared& shared) {
  int begin = 0, end = n;
  while (end - begin > 1) {
    const int part = (end - begin + kWarps - 1) / kWarps;
    const int first = begin + static_cast<int>(threadIdx.x) / kWarp * part;
    uint64_t sum = 0;
    for (int i = first + threadIdx.x % kWarp; i < min(end, first + part); i += kWarp) {
      sum += amount(i);
    }
    ShareWarps(WarpSum(sum), shared);
    int warp = 0;
    while (warp + 1 < kWarps && shared.warps[warp] < *units) *units -= shared.warps[warp++];
    begin += warp * part;
    end = min(end, begin + part);
  }
  return begin;
}

// One row, whose tokens below the rank `last` have been cut.
struct Row {
  const float* logits;
  int vocab;
  uint64_t last = 0;

  __device__ bool Kept(int i) const { return Rank(logits[i], i) >= last; }

  // The highest rank of [begin, end): four logits a load, where those are aligned.
  __device__ uint64_t Likeliest(int begin, int end, Shared& shared) const {
    constexpr int kVector = 4;
    const auto misaligned =
        static_cast<int>(reinterpret_cast<uintptr_t>(logits + begin) / sizeof(float) % kVector);
    const int first = min(end, begin + (kVector - misaligned) % kVector);
    const int vectors = (end - first) / kVector;
    uint64_t best = 0;
    const auto see = [&best](float logit, int i) {
      const uint64_t rank = Rank(logit, i);
      if (rank > best) best = rank;
    };
    const int thread = static_cast<int>(threadIdx.x);
    if (begin + thread < first) see(logits[begin + thread], begin + thread);
    const auto* four = reinterpret_cast<const float4*>(logits + first);
#pragma unroll 4
    for (int i = thread; i < vectors; i += kThreads) {
      const float4 x = four[i];
      const int at = first + i * kVector;
      see(x.x, at);
      see(x.y, at + 1);
      see(x.z, at + 2);
      see(x.w, at + 3);
    }
    const int rest = first + vectors * kVector + thread;
    if (rest < end) see(logits[rest], rest);
    ShareWarps(WarpMax(best), shared);
    for (const uint64_t of_warp : shared.warps) {
      if (of_warp > best) best = of_warp;
    }
    return best;
  }

  template <typename Amount>
  __device__ uint64_t Total(const Amount& amount, Shared& shared) const {
    uint64_t sum = 0;
    for (int i = threadIdx.x; i < vocab; i += kThreads) sum += amount(i);
    ShareWarps(WarpSum(sum), shared);
    uint64_t total = 0;
    for (const uint64_t of_warp : shared.warps) total += of_warp;
    return total;
  }

  // The rank of the last of the fewest likeliest whose amounts together reach `units`, which is at
  // least 1 and at most the sum of all: the key digit by digit, then the id.
  template <typename Amount>
  __device__ uint64_t RankThatReaches(uint64_t units, const Amount& amount, Shared& shared) const {
    uint64_t key = 0;  // its digits so far
    for (int above = 32, below; above > 0; above = below) {
      below = max(0, above - kDigitBits);
      shared.low[threadIdx.x] = shared.high[threadIdx.x] = 0;
      __syncthreads();
      for (int i = threadIdx.x; i < vocab; i += kThreads) {
        const uint64_t of_token = OrderKey(logits[i]);
        if (of_token >> above != key) continue;
        const uint64_t units_of_token = amount(i);
        if (units_of_token == 0) continue;
        const auto digit = static_cast<uint32_t>(of_token >> below) % (1u << (above - below));
        const auto low = static_cast<uint32_t>(units_of_token);
        const uint32_t before = atomicAdd(&shared.low[digit], low);
        const uint32_t carry = before + low < before ? 1 : 0;
        const uint32_t high = static_cast<uint32_t>(units_of_token >> 32) + carry;
        if (high != 0) atomicAdd(&shared.high[digit], high);
      }
      __syncthreads();
      const auto of_digit = [&](int i) {  // the highest first
        const int digit = kDigits - 1 - i;
        return static_cast<uint64_t>(shared.high[digit]) << 32 | shared.low[digit];
      };
      const int digit = kDigits - 1 - IndexThatReaches(&units, kDigits, of_digit, shared);
      key = key << (above - below) | static_cast<uint64_t>(digit);
    }
    const auto of_equals = [&](int i) { return OrderKey(logits[i]) == key ? amount(i) : 0; };
    const int id = IndexThatReaches(&units, vocab, of_equals, shared);
    return Rank(logits[id], id);
  }
};

__device__ int32_t TokenOf(Row row, int32_t likeliest, const RowSampling& sampling,
                           Shared& shared) {
  const float best = row.logits[likeliest];
  if (sampling.temperature == 0 || !isfinite(best)) return likeliest;
  if (sampling.top_k > 0 && sampling.top_k < row.vocab) {
    const auto one = [](int) -> uint64_t { return 1; };
    row.last = row.RankThatReaches(sampling.top_k, one, shared);
  }
  const Weigher weigher(best, sampling);
  const auto weight = [&](int i) { return row.Kept(i) ? weigher(row.logits[i]) : 0; };
  uint64_t total = row.Total(weight, shared);
  if (sampling.top_p < 1) {
    row.last = row.RankThatReaches(UnitsOfShare(sampling.top_p, total), weight, shared);
    total = row.Total(weight, shared);
  }
  uint64_t units = UnitAt(sampling.uniform, total);
  return IndexThatReaches(&units, row.vocab, weight, shared);
}

// Blocks (row, part). parts: [row][part], the likeliest of each; ended: [row], how many, which is 0
// between kernels.
__global__ void __launch_bounds__(kThreads)
    SampleRows(LogitRows logits, const RowSampling* rows, int32_t* tokens, uint64_t* parts,
               unsigned* ended) {
  BeginEarly();
  __shared__ Shared shared;
  const Row row{logits.data + blockIdx.x * logits.stride, static_cast<int>(logits.vocab)};
  const int part = (row.vocab + static_cast<int>(gridDim.y) - 1) / static_cast<int>(gridDim.y);
  const int begin = min(row.vocab, static_cast<int>(blockIdx.y) * part);
  uint64_t best = row.Likeliest(begin, min(row.vocab, begin + part), shared);
  if (gridDim.y > 1) {
    uint64_t* of_row = parts + blockIdx.x * gridDim.y;
    bool last = false;
    if (threadIdx.x == 0) {
      __stcg(&of_row[blockIdx.y], best);
      __threadfence();
      // Becomes 0 again by the last one.
      last = atomicInc(&ended[blockIdx.x], gridDim.y - 1) == gridDim.y - 1;
    }
    if (!__syncthreads_or(last)) return;
    __threadfence();
    for (unsigned i = 0; i < gridDim.y; ++i) {
      const uint64_t of_part = __ldcg(&of_row[i]);
      if (of_part > best) best = of_part;
    }
  }
  const int32_t token = TokenOf(row, IdOf(best), rows[blockIdx.x], shared);
  if (threadIdx.x == 0) tokens[blockIdx.x] = token;
}

constexpr int64_t kCountersMax = 4096;

// kCountersMax of the device's, 0 between kernels. The first call takes their memory.
unsigned* CountersOf() {
  // There is one device, which outlives static objects.
  static const auto* const counters = new Buffer(kCountersMax * sizeof(unsigned), Memory::kDevice);
  return counters->as<unsigned>();
}

// Few rows are divided among the multiprocessors, as long as every thread of a block has some.
int64_t PartsOf(const CudaDevice& device, int64_t rows, int64_t vocab) {
  constexpr int64_t kPartsMax = 32, kLeast = 4 * kThreads;
  if (rows > kCountersMax) return 1;
  return std::clamp<int64_t>(std::min(device.multiprocessors() / rows, vocab / kLeast), 1,
                             kPartsMax);
}

}  // namespace

void SampleTokens(CudaDevice& device, const LogitRows& logits, std::span<const RowSampling> rows,
                  int32_t* tokens) {
  if (rows.empty()) return;
  const int64_t count = std::ssize(rows), parts = PartsOf(device, count, logits.vocab);
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(parts));
  LaunchEarly(device, {grid, kThreads}, SampleRows, logits, rows.data(), tokens,
              reinterpret_cast<uint64_t*>(device.scratch()), CountersOf());
}

}  // namespace kvcake::cuda
