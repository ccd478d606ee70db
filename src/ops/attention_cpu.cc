#include <algorithm>

#include "base/check.h"
#include "ops/attention_backends.h"
#include "ops/kernels.h"

namespace kvcake {
namespace {

// For the sums of single rows, which are computed partial by partial: each slot holds one partial
// of one group of heads. Rows that find none left are computed head by head.
constexpr int64_t kSlotBytesAll = 32 << 20;

int64_t Partials(const AttentionSlice& slice) {
  return (slice.start + slice.rows - 1) / kAttentionPartial + 1;
}

// Some tokens of a slice for one KV head, or one partial of one token for some KV heads.
struct Task {
  int slice = 0;
  int kv_head = 0;  // the first
  int kv_heads = 1;
  int64_t token = 0;  // in the slice
  int64_t tokens = 0;
  int64_t partial = -1;     // -1: all of them
  int64_t slot = 0;         // of a single partial's sums, for the first head
  int64_t slot_stride = 0;  // to the next head's
  int64_t cost = 0;         // queries times keys
};

// The partials of one token for one KV head, in consecutive slots.
struct Merge {
  int slice = 0;
  int kv_head = 0;
  int64_t slot = 0;
  int64_t partials = 0;
};

// A plan is a plain value: what is computed alone never changes its bits, so it is free to follow
// the shape of the batch.
class CpuPlan : public AttentionPlan {
 public:
  CpuPlan(const AttentionShape& shape, int workers, int64_t rows_max, int64_t slots)
      : shape_(shape), workers_(workers), rows_max_(rows_max), slots_(slots) {}

  void Set(std::span<const AttentionSlice> slices) override;
  std::vector<uint64_t> launches() const override { return {}; }
  const AttentionSlice& slice(int i) const { return slices_[i]; }
  std::span<const Task> tasks() const { return tasks_; }
  std::span<const Merge> merges() const { return merges_; }

 private:
  // Plans a slice of one token. False when there are not enough slots left.
  bool PlanPartials(int slice, int64_t partials, int heads_per_task, int64_t* slots);

  const AttentionShape& shape_;
  const int workers_;
  const int64_t rows_max_;  // of a task
  const int64_t slots_;
  std::vector<AttentionSlice> slices_;
  std::vector<Task> tasks_;
  std::vector<Merge> merges_;
};

class CpuAttention : public Attention {
 public:
  CpuAttention(const Compute& compute, AttentionShape shape, const PagePool& pool)
      : compute_(compute),
        shape_(std::move(shape)),
        pool_(pool),
        slot_floats_(shape_.heads / shape_.kv_heads * SumsStride(shape_.head_dim)),
        slots_(kSlotBytesAll / (slot_floats_ * sizeof(float))),
        sums_(slots_ * slot_floats_ * sizeof(float)),
        masked_sums_(compute.pool().size() * compute.kernels().attend_rows *
                     SumsStride(shape_.head_dim) * sizeof(float)) {}

  std::unique_ptr<AttentionPlan> NewPlan() override {
    return std::make_unique<CpuPlan>(shape_, compute_.pool().size(), compute_.kernels().attend_rows,
                                     slots_);
  }
  void Run(const AttentionPlan& plan, int layer, int64_t q_stride, const Activations& out) override;

 private:
  void RunTask(const Task& task, const AttentionSlice& slice, int layer, int64_t q_stride,
               const Activations& out, int worker) const;
  void RunMasked(const Task& task, const AttentionSlice& slice, int layer, int64_t q_stride,
                 int worker) const;
  void RunPartial(const Task& task, const AttentionSlice& slice, int layer, int worker) const;
  void RunMerge(const Merge& merge, const AttentionSlice& slice, const Activations& out) const;

  const Compute& compute_;
  const AttentionShape shape_;
  const PagePool& pool_;
  const int64_t slot_floats_;
  const int64_t slots_;
  const Buffer sums_;         // [slot][heads per KV head][SumsStride(head_dim)] f32
  const Buffer masked_sums_;  // [worker][attend_rows][SumsStride(head_dim)] f32
};

void CpuAttention::Run(const AttentionPlan& of, int layer, int64_t q_stride,
                       const Activations& out) {
  const auto& plan = static_cast<const CpuPlan&>(of);
  compute_.pool().ParallelFor(std::ssize(plan.tasks()), [&](int64_t i, int worker) {
    const Task& task = plan.tasks()[i];
    const AttentionSlice& slice = plan.slice(task.slice);
    if (task.partial >= 0) {
      RunPartial(task, slice, layer, worker);
    } else {
      RunTask(task, slice, layer, q_stride, out, worker);
      RunMasked(task, slice, layer, q_stride, worker);
    }
  });
  compute_.pool().ParallelFor(std::ssize(plan.merges()), [&](int64_t i, int) {
    RunMerge(plan.merges()[i], plan.slice(plan.merges()[i].slice), out);
  });
}

void CpuPlan::Set(std::span<const AttentionSlice> slices) {
  slices_.assign(slices.begin(), slices.end());
  tasks_.clear();
  merges_.clear();
  const int64_t group = shape_.heads / shape_.kv_heads;
  const int64_t tasks_wanted = 4 * workers_;
  int64_t rows = 0, partials = 0;
  for (const AttentionSlice& slice : slices) {
    rows += slice.rows;
    if (slice.rows == 1) partials += Partials(slice);
  }
  // As many tokens as fit a tile share the packing of keys and values; fewer when that leaves
  // workers without a task.
  int64_t tile = rows_max_ / group;
  while (tile > 16 && rows / tile * shape_.kv_heads < tasks_wanted) tile /= 2;
  // Few partials are shared out by heads.
  const int64_t per_partial = (tasks_wanted + partials - 1) / std::max<int64_t>(partials, 1);
  const int heads_per_task = std::max(1, static_cast<int>(shape_.kv_heads / per_partial));
  int64_t slots = 0;
  for (int s = 0; s < static_cast<int>(slices.size()); ++s) {
    const AttentionSlice& slice = slices[s];
    const bool alone = slice.rows == 1 && slice.dense_keys <= slice.start + 1;
    if (alone && PlanPartials(s, Partials(slice), heads_per_task, &slots)) continue;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      for (int64_t token = 0; token < slice.rows; token += tile) {
        const int64_t tokens = std::min(tile, slice.rows - token);
        tasks_.push_back(
            {.slice = s,
             .kv_head = head,
             .token = token,
             .tokens = tokens,
             .cost = tokens * std::max(slice.start + token + tokens, slice.dense_keys)});
      }
    }
  }
  std::sort(tasks_.begin(), tasks_.end(),
            [](const Task& a, const Task& b) { return a.cost > b.cost; });
}

bool CpuPlan::PlanPartials(int slice, int64_t partials, int heads_per_task, int64_t* slots) {
  if (*slots + partials * shape_.kv_heads > slots_) return false;
  for (int head = 0; head < shape_.kv_heads; ++head) {
    merges_.push_back(
        {.slice = slice, .kv_head = head, .slot = *slots + head * partials, .partials = partials});
  }
  for (int64_t partial = 0; partial < partials; ++partial) {
    for (int head = 0; head < shape_.kv_heads; head += heads_per_task) {
      const int heads = std::min(heads_per_task, shape_.kv_heads - head);
      tasks_.push_back({.slice = slice,
                        .kv_head = head,
                        .kv_heads = heads,
                        .tokens = 1,
                        .partial = partial,
                        .slot = *slots + head * partials + partial,
                        .slot_stride = partials,
                        .cost = kAttentionPartial * heads});
    }
  }
  *slots += partials * shape_.kv_heads;
  return true;
}

// Chunk by chunk, and in each head by head: in the order in which memory holds them, which it reads
// twice as fast as head by head.
void CpuAttention::RunPartial(const Task& task, const AttentionSlice& slice, int layer,
                              int worker) const {
  const int64_t group = shape_.heads / shape_.kv_heads, chunk = pool_.layout().chunk_tokens;
  const int64_t block = compute_.kernels().attention_block;
  const int64_t step = (chunk + block - 1) / block * block;
  const int64_t begin = task.partial * kAttentionPartial;
  const int64_t end = std::min(begin + kAttentionPartial, slice.start + 1);
  for (int64_t from = begin; from < end; from += step) {
    for (int i = 0; i < task.kv_heads; ++i) {
      const int kv_head = task.kv_head + i;
      const int64_t head = kv_head * group;
      const bool last = i + 1 == task.kv_heads;
      const KvView next{&pool_, slice.pages, layer, last ? task.kv_head : kv_head + 1};
      const int64_t next_from = last ? from + step : from;
      compute_.kernels().attend(
          {.q = slice.q + head * shape_.head_dim,
           .tokens = 1,
           .group = group,
           .head_dim = shape_.head_dim,
           .start = slice.start,
           .kv = {&pool_, slice.pages, layer, kv_head},
           .next_kv = next_from < end ? next : KvView{},
           .next_from = next_from,
           .alibi = shape_.alibi_slopes.empty() ? nullptr : &shape_.alibi_slopes[head],
           .from = from,
           .to = std::min(from + step, end),
           .sums = sums_.as<float>() + (task.slot + i * task.slot_stride) * slot_floats_,
           .scratch = compute_.scratch(worker)});
    }
  }
}

void CpuAttention::RunTask(const Task& task, const AttentionSlice& slice, int layer,
                           int64_t q_stride, const Activations& out, int worker) const {
  const int64_t group = shape_.heads / shape_.kv_heads;
  const int64_t head = task.kv_head * group * shape_.head_dim;
  const int64_t out_at = (slice.out_row + task.token) * out.stride + head;
  compute_.kernels().attend(
      {.q = slice.q + task.token * q_stride + head,
       .q_stride = q_stride,
       .tokens = task.tokens,
       .group = group,
       .head_dim = shape_.head_dim,
       .start = slice.start + task.token,
       .kv = {&pool_, slice.pages, layer, task.kv_head},
       .alibi = shape_.alibi_slopes.empty() ? nullptr : &shape_.alibi_slopes[task.kv_head * group],
       .out = out.data + out_at * ActivationBytes(compute_.path()),
       .out_stride = out.stride,
       .scratch = compute_.scratch(worker)});
}

// The rows stand where they see all of the blocks that they may not, and what these add up to goes
// nowhere.
void CpuAttention::RunMasked(const Task& task, const AttentionSlice& slice, int layer,
                             int64_t q_stride, int worker) const {
  const int64_t group = shape_.heads / shape_.kv_heads;
  const int64_t seen = slice.start + task.token + task.tokens;
  const int64_t block = compute_.kernels().attention_block;
  const int64_t end = slice.dense_keys / block * block;
  float* const sums = masked_sums_.as<float>() +
                      worker * compute_.kernels().attend_rows * SumsStride(shape_.head_dim);
  for (int64_t from = (seen + block - 1) / block * block; from < end;) {
    const int64_t to = std::min(end, (from / kAttentionPartial + 1) * kAttentionPartial);
    compute_.kernels().attend(
        {.q = slice.q + task.token * q_stride + task.kv_head * group * shape_.head_dim,
         .q_stride = q_stride,
         .tokens = task.tokens,
         .group = group,
         .head_dim = shape_.head_dim,
         .start = end,
         .kv = {&pool_, slice.pages, layer, task.kv_head},
         .from = from,
         .to = to,
         .sums = sums,
         .scratch = compute_.scratch(worker)});
    from = to;
  }
}

void CpuAttention::RunMerge(const Merge& merge, const AttentionSlice& slice,
                            const Activations& out) const {
  const int64_t group = shape_.heads / shape_.kv_heads;
  float* total = sums_.as<float>() + merge.slot * slot_floats_;
  for (int64_t partial = 1; partial < merge.partials; ++partial) {
    compute_.kernels().merge_sums(total, total + partial * slot_floats_, group, shape_.head_dim);
  }
  for (int64_t h = 0; h < group; ++h) {
    const int64_t at = slice.out_row * out.stride + (merge.kv_head * group + h) * shape_.head_dim;
    compute_.kernels().finish_sums(total + h * SumsStride(shape_.head_dim), shape_.head_dim,
                                   out.data + at * ActivationBytes(compute_.path()));
  }
}

}  // namespace

std::unique_ptr<Attention> NewCpuAttention(const Compute& compute, AttentionShape shape,
                                           const PagePool& pool) {
  return std::make_unique<CpuAttention>(compute, std::move(shape), pool);
}

}  // namespace kvcake
