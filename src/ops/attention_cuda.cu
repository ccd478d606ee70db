// The plan of attention on CUDA, and the kernels of slices of several rows. Tiles of rows are
// computed whole, or partial by partial and then merged; a row's bits are the same. Slices of one
// row, as decode has them, are CudaDecode's.
#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ops/attention_backends.h"
#include "ops/attention_cuda_decode.h"
#include "ops/attention_cuda_mma.cuh"
#include "ops/attention_cuda_sums.cuh"
#include "ops/attention_cuda_wgmma.cuh"
#include "ops/cuda_device.h"
#include "ops/cuda_launch.h"
#include "ops/step_array.h"

namespace kvcake {
namespace {

using cuda::AttentionArgs;
using cuda::AttentionTask;

static_assert(kAttentionPartial % kAttentionBlock == 0 && kAttentionBlock == 64);

// Positions and row numbers, and what is added to them, are ints on the device.
constexpr int64_t kIntMax = 1 << 30;
constexpr int kMergeThreads = 128;
constexpr int kQueryFloats = 2;  // that TileRows reads at once

// ---- kernels ----

// A block a task, KV head, and kOut dimensions of the result.
template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    Attend(const __grid_constant__ AttentionArgs args,
           const __grid_constant__ cuda::TensorMap pool) {
  cuda::BeginEarly();
  if constexpr (Tile::kCompiled) {
    auto* const shared = cuda::DynamicShared<std::byte>();
    const int outs = Tile::kDim / Tile::kOut, of_task = args.kv_heads * outs;
    const int block = static_cast<int>(blockIdx.x), head = block % of_task;
    const AttentionTask& task = args.tasks[block / of_task];
    if (task.rows == 0) return;
    Tile(args, pool, task, head / outs, head % outs * Tile::kOut, shared).Run();
  } else {
    __trap();
  }
}

// Blocks (task and KV head, row): adds up a split tile's partials.
__global__ void __launch_bounds__(kMergeThreads) Merge(const __grid_constant__ AttentionArgs args) {
  cuda::BeginEarly();
  const int block = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y);
  const int kv_head = block % args.kv_heads;
  const AttentionTask task = args.tasks[block / args.kv_heads];
  if (row >= cuda::RowsOf(args, task)) return;
  for (int dim = 2 * static_cast<int>(threadIdx.x); dim < args.head_dim; dim += 2 * kMergeThreads) {
    cuda::MergePair(args, task, kv_head, row, dim);
  }
}

// Attend for some head_dims.
struct TileKernel {
  int tile_rows;
  int threads;
  int padded_dim;
  int outs;  // blocks of threads a task and KV head
  void (*attend)(AttentionArgs args, cuda::TensorMap pool);
  int shared_bytes;
};

template <typename Tile>
TileKernel KernelOf() {
  return {.tile_rows = Tile::kTileRows,
          .threads = Tile::kThreads,
          .padded_dim = Tile::kDim,
          .outs = Tile::kDim / Tile::kOut,
          .attend = Attend<Tile>,
          .shared_bytes = Tile::kBytes};
}

TileKernel KernelFor(AttentionBackend backend, int head_dim) {
  if (backend == AttentionBackend::kWgmma) {
    CHECK(head_dim <= 128);
    return head_dim <= 64 ? KernelOf<cuda::WgmmaTile<64>>() : KernelOf<cuda::WgmmaTile<128>>();
  }
  if (head_dim <= 64) return KernelOf<cuda::MmaTile<64, 64>>();
  if (head_dim <= 96) return KernelOf<cuda::MmaTile<96, 96>>();
  if (head_dim <= 128) return KernelOf<cuda::MmaTile<128, 128>>();
  static_assert(kAttentionHeadDimMax == 256);
  return KernelOf<cuda::MmaTile<256, 128>>();
}

// The pool for TMA: dimensions of a key or value; tokens of a chunk, head after head; keys and
// values; layers; pages. A box is 64 dimensions of some tokens of a head.
cuda::TensorMap MapPool(const PagePool& pool, int box_tokens) {
  const KvLayout& layout = pool.layout();
  const auto dim = static_cast<uint64_t>(layout.head_dim);
  return cuda::MapTensor(
      {.data = pool.Slab(0, 0),
       .size = {dim, static_cast<uint64_t>(layout.kv_heads) * layout.chunk_tokens, 2,
                static_cast<uint64_t>(layout.layers), pool.pages()},
       .stride = {sizeof(uint16_t), dim * sizeof(uint16_t),
                  layout.plane_elements() * sizeof(uint16_t), layout.slab_bytes(),
                  layout.page_bytes()},
       .box = {64, static_cast<uint32_t>(box_tokens), 1, 1, 1}});
}

// ---- plans ----

struct PlanLimits {
  int64_t tile_rows = 0;
  int64_t decode_rows = 0;   // of a tile of a slice of one row
  int64_t decode_tiles = 0;  // of such a slice
  int64_t group = 0;
  int64_t kv_heads = 0;
  int64_t chunk_tokens = 0;
  AttentionLimits all;
  int64_t pool_pages = 0;
  int64_t sums_rows = 0;  // that have room

  // Tiles, some of which are split, and a merge for each of those; then what Pad adds.
  int64_t max_tasks() const {
    const int64_t tiles = all.rows * group / tile_rows + all.slices * (1 + decode_tiles);
    return (2 * tiles + sums_rows / kv_heads) * 5 / 4 + 3;
  }
};

class CudaPlan : public AttentionPlan {
 public:
  CudaPlan(const Compute& compute, const CudaDecode& decode, const PlanLimits& limits);

  // dense_keys cost time where they are computed, and change no result: here they are not.
  void Set(std::span<const AttentionSlice> slices) override;
  std::vector<uint64_t> launches() const override {
    return {tasks_.size(),
            merges_.size(),
            static_cast<uint64_t>(merge_rows_),
            decodes_.size(),
            static_cast<uint64_t>(decode_launch_.outs),
            static_cast<uint64_t>(decode_launch_.slots)};
  }

  // On the device.
  std::span<const AttentionTask> tasks() const { return on_device_.first(tasks_.size()); }
  std::span<const AttentionTask> merges() const {
    return on_device_.subspan(tasks_.size(), merges_.size());
  }
  std::span<const AttentionTask> decodes() const {
    return on_device_.subspan(tasks_.size() + merges_.size());
  }
  const PageId* pages() const { return pages_on_device_.data(); }
  int merge_rows() const { return merge_rows_; }  // the most of one merge
  const DecodeLaunch& decode_launch() const { return decode_launch_; }

 private:
  int64_t Pages(const AttentionSlice& slice) const {
    return (slice.start + slice.rows + limits_.chunk_tokens - 1) / limits_.chunk_tokens;
  }
  int64_t Tiles(const AttentionSlice& slice) const {
    return (slice.rows * limits_.group + limits_.tile_rows - 1) / limits_.tile_rows;
  }
  void AddTiles(const AttentionSlice& slice, int64_t pages, bool split);
  // Adds the tile's partials to `tasks`. False when there is too little room left for its sums.
  bool Split(AttentionTask* tile, int64_t rows, std::vector<AttentionTask>* tasks);
  void Commit();

  const Compute& compute_;
  const CudaDecode& decode_;
  const PlanLimits limits_;
  std::vector<AttentionTask> tasks_;
  std::vector<AttentionTask> merges_;   // a split tile of them each
  std::vector<AttentionTask> decodes_;  // of slices of one row
  int decode_tiles_ = 0;                // that are split
  DecodeLaunch decode_launch_;
  int64_t sums_rows_ = 0;  // taken
  int merge_rows_ = 0;
  StepArray<AttentionTask> array_;  // tasks, then merges, then decodes
  StepArray<PageId> page_array_;    // the slices' lists
  std::span<const AttentionTask> on_device_;
  std::span<const PageId> pages_on_device_;
};

// Adds tasks with nothing to do, up to one of a few numbers, a quarter apart at most, so that the
// launches of steps repeat while contexts grow.
void Pad(std::vector<AttentionTask>* tasks) {
  const size_t size = tasks->size(), step = std::max<size_t>(std::bit_floor(size) / 4, 1);
  tasks->resize((size + step - 1) / step * step);
}

CudaPlan::CudaPlan(const Compute& compute, const CudaDecode& decode, const PlanLimits& limits)
    : compute_(compute),
      decode_(decode),
      limits_(limits),
      array_(compute, limits.max_tasks()),
      page_array_(compute, limits.all.slices * limits.pool_pages) {}

void CudaPlan::Set(std::span<const AttentionSlice> slices) {
  tasks_.clear();
  merges_.clear();
  decodes_.clear();
  decode_tiles_ = 0;
  sums_rows_ = 0;
  merge_rows_ = 0;
  int64_t rows = 0, pages = 0, tiles = 0;
  for (const AttentionSlice& slice : slices) {
    CHECK(slice.start >= 0 && slice.start + slice.rows <= kIntMax);
    CHECK(slice.old_keys >= 0 && slice.old_keys <= slice.start + slice.rows);
    CHECK(Pages(slice) <= std::ssize(slice.pages));
    CHECK(reinterpret_cast<uintptr_t>(slice.q) % (kQueryFloats * sizeof(float)) == 0);
    rows += slice.rows;
    pages += Pages(slice);
    if (slice.rows > 1) tiles += Tiles(slice);
  }
  CHECK(std::ssize(slices) <= limits_.all.slices);
  CHECK(rows <= limits_.all.rows && rows * limits_.group <= kIntMax && pages <= kIntMax);
  // The partials of a single row are always computed side by side; those of others where their
  // tiles alone would leave more than a fifth of the multiprocessors idle: splitting costs that.
  const bool idle = 5 * tiles * limits_.kv_heads < 4 * compute_.cuda()->multiprocessors();
  int64_t at = 0;
  for (const AttentionSlice& slice : slices) {
    std::ranges::copy(slice.pages.first(Pages(slice)), page_array_.host().begin() + at);
    AddTiles(slice, at, idle || slice.rows == 1);
    at += Pages(slice);
  }
  // Longest first, so that the last ones to end are short.
  std::ranges::sort(tasks_, std::greater(), &AttentionTask::keys);
  std::ranges::sort(decodes_, std::greater(), &AttentionTask::keys);
  pages_on_device_ = page_array_.Commit(compute_, pages);
  Commit();
}

void CudaPlan::AddTiles(const AttentionSlice& slice, int64_t pages, bool split) {
  const bool decode = slice.rows == 1;
  const int64_t rows = slice.rows * limits_.group;
  const int64_t tile_rows = decode ? limits_.decode_rows : limits_.tile_rows;
  std::vector<AttentionTask>& tasks = decode ? decodes_ : tasks_;
  for (int64_t row = 0; row < rows; row += tile_rows) {
    const int64_t last = std::min(row + tile_rows, rows) - 1;
    const int64_t keys = slice.start + last / limits_.group + 1;
    AttentionTask tile = {.q = slice.q,
                          .pages = static_cast<int32_t>(pages),
                          .start = static_cast<int32_t>(slice.start),
                          .old_keys = static_cast<int32_t>(slice.old_keys),
                          .out_row = static_cast<int32_t>(slice.out_row),
                          .rows = static_cast<int32_t>(rows),
                          .row = static_cast<int32_t>(row),
                          .partials = static_cast<int32_t>((keys - 1) / kAttentionPartial + 1),
                          .keys = static_cast<int32_t>(keys)};
    if (!split || tile.partials == 1 || !Split(&tile, last + 1 - row, &tasks)) {
      tasks.push_back(tile);
    } else if (!decode) {
      merges_.push_back(tile);
      merge_rows_ = std::max(merge_rows_, static_cast<int>(last + 1 - row));
    }
  }
}

bool CudaPlan::Split(AttentionTask* tile, int64_t rows, std::vector<AttentionTask>* tasks) {
  const int64_t wanted = limits_.kv_heads * tile->partials * rows;
  if (sums_rows_ + wanted > limits_.sums_rows) return false;
  tile->sums = static_cast<int32_t>(sums_rows_);
  sums_rows_ += wanted;
  if (tasks == &decodes_) tile->tile = decode_tiles_++;
  AttentionTask task = *tile;
  for (task.partial = 0; task.partial < task.partials; ++task.partial) {
    task.keys = std::min(kAttentionPartial, tile->keys - task.partial * kAttentionPartial);
    tasks->push_back(task);
  }
  return true;
}

void CudaPlan::Commit() {
  Pad(&tasks_);
  Pad(&merges_);
  Pad(&decodes_);
  decode_launch_ = decode_.LaunchOf(decodes_);
  const auto size = static_cast<int64_t>(tasks_.size() + merges_.size() + decodes_.size());
  const auto merges = std::ranges::copy(tasks_, array_.host().begin()).out;
  std::ranges::copy(decodes_, std::ranges::copy(merges_, merges).out);
  on_device_ = array_.Commit(compute_, size);
}

// ---- attention ----

class CudaAttention : public Attention {
 public:
  CudaAttention(const Compute& compute, AttentionShape shape, const PagePool& pool,
                const AttentionLimits& limits, AttentionBackend backend);

  std::unique_ptr<AttentionPlan> NewPlan() override {
    return std::make_unique<CudaPlan>(compute_, decode_,
                                      PlanLimits{.tile_rows = kernel_.tile_rows,
                                                 .decode_rows = decode_.tile_rows(),
                                                 .decode_tiles = decode_.tiles(),
                                                 .group = shape_.heads / shape_.kv_heads,
                                                 .kv_heads = shape_.kv_heads,
                                                 .chunk_tokens = pool_.layout().chunk_tokens,
                                                 .all = limits_,
                                                 .pool_pages = static_cast<int64_t>(pool_.pages()),
                                                 .sums_rows = sums_rows_});
  }
  void Run(const AttentionPlan& plan, int layer, int64_t q_stride, const Activations& out) override;

 private:
  const Compute& compute_;
  const AttentionShape shape_;
  const PagePool& pool_;
  const AttentionLimits limits_;
  const TileKernel kernel_;
  const CudaDecode decode_;
  const int box_tokens_;  // tokens of a page that one copy takes
  cuda::TensorMap pool_map_ = {};
  const int64_t sums_rows_;
  const Buffer sums_;
  const Buffer slopes_;  // of ALiBi; else empty
};

CudaAttention::CudaAttention(const Compute& compute, AttentionShape shape, const PagePool& pool,
                             const AttentionLimits& limits, AttentionBackend backend)
    : compute_(compute),
      shape_(std::move(shape)),
      pool_(pool),
      limits_(limits),
      kernel_(KernelFor(backend, shape_.head_dim)),
      decode_(compute, shape_, limits.slices),
      box_tokens_(std::gcd(pool.layout().chunk_tokens, kAttentionBlock)),
      sums_rows_(limits.sums_bytes / (cuda::SumsStride(kernel_.padded_dim) * sizeof(float))),
      sums_(limits.sums_bytes, Memory::kDevice),
      slopes_(shape_.alibi_slopes.empty() ? Buffer() : compute.Put(shape_.alibi_slopes)) {
  CHECK(pool.contiguous());
  if (backend == AttentionBackend::kWgmma) pool_map_ = MapPool(pool, box_tokens_);
  CHECK(static_cast<int64_t>(pool.layout().plane_elements()) <= kIntMax);
  CUDA_CHECK(cudaFuncSetAttribute(kernel_.attend, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kernel_.shared_bytes));
}

void CudaAttention::Run(const AttentionPlan& of, int layer, int64_t q_stride,
                        const Activations& out) {
  CHECK(q_stride % kQueryFloats == 0);
  const auto& plan = static_cast<const CudaPlan&>(of);
  const KvLayout& layout = pool_.layout();
  AttentionArgs args = {
      .tasks = plan.tasks().data(),
      .pages = plan.pages(),
      .slopes = slopes_.as<float>(),
      .slab = pool_.Slab(0, layer),
      .page_elements = static_cast<int64_t>(layout.page_bytes() / sizeof(uint16_t)),
      .plane_elements = static_cast<int64_t>(layout.plane_elements()),
      .q_stride = q_stride,
      .out_stride = out.stride,
      .out = reinterpret_cast<uint16_t*>(out.data),
      .sums = sums_.as<float>(),
      .chunk_tokens = layout.chunk_tokens,
      .box_tokens = box_tokens_,
      .layer = layer,
      .kv_heads = shape_.kv_heads,
      .group = shape_.heads / shape_.kv_heads,
      .head_dim = shape_.head_dim,
      .padded_dim = kernel_.padded_dim,
      .tile_rows = kernel_.tile_rows};
  CudaDevice& device = *compute_.cuda();
  if (!plan.tasks().empty()) {
    const int64_t tasks = std::ssize(plan.tasks()) * shape_.kv_heads * kernel_.outs;
    cuda::LaunchEarly(device, {tasks, kernel_.threads, kernel_.shared_bytes}, kernel_.attend, args,
                      pool_map_);
  }
  if (!plan.merges().empty()) {
    args.tasks = plan.merges().data();
    const dim3 merges(static_cast<unsigned>(plan.merges().size() * shape_.kv_heads),
                      static_cast<unsigned>(plan.merge_rows()));
    cuda::LaunchEarly(device, {merges, kMergeThreads}, Merge, args);
  }
  if (!plan.decodes().empty()) {
    args.tasks = plan.decodes().data();
    decode_.Run(args, std::ssize(plan.decodes()), plan.decode_launch());
  }
}

}  // namespace

std::unique_ptr<Attention> NewCudaAttention(const Compute& compute, AttentionShape shape,
                                            const PagePool& pool, const AttentionLimits& limits,
                                            AttentionBackend backend) {
  return std::make_unique<CudaAttention>(compute, std::move(shape), pool, limits, backend);
}

}  // namespace kvcake
