#include "ops/attention.h"

#include "base/check.h"
#include "ops/attention_backends.h"
#include "ops/bf16.h"

namespace kvcake {

std::unique_ptr<Attention> Attention::Create(const Compute& compute, const AttentionShape& shape,
                                             const PagePool& pool, int64_t max_rows,
                                             int64_t max_slices) {
  CHECK(shape.alibi_slopes.empty() ||
        shape.alibi_slopes.size() == static_cast<size_t>(shape.heads));
  CHECK(shape.heads % shape.kv_heads == 0 && shape.heads / shape.kv_heads <= kAttentionGroupMax);
  CHECK(shape.head_dim % 16 == 0 && shape.head_dim <= kAttentionHeadDimMax);
  CHECK(pool.layout().head_dim == shape.head_dim && pool.layout().kv_heads == shape.kv_heads);
  CHECK(pool.layout().chunk_tokens % 16 == 0);
  AttentionShape rounded = shape;
  for (float& slope : rounded.alibi_slopes) slope = Bf16ToF32(F32ToBf16(slope));
  if (compute.cuda() == nullptr) return NewCpuAttention(compute, std::move(rounded), pool);
  return NewCudaAttention(compute, std::move(rounded), pool, max_rows, max_slices);
}

}  // namespace kvcake
