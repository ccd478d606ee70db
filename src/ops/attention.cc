#include "ops/attention.h"

#include "base/check.h"
#include "ops/attention_backends.h"
#include "base/bf16.h"
#include "ops/cuda_device.h"

namespace kvcake {

std::unique_ptr<Attention> Attention::Create(const Compute& compute, const AttentionShape& shape,
                                             const PagePool& pool, const AttentionLimits& limits,
                                             AttentionBackend backend) {
  CHECK(shape.alibi_slopes.empty() ||
        shape.alibi_slopes.size() == static_cast<size_t>(shape.heads));
  CHECK(shape.heads % shape.kv_heads == 0 && shape.heads / shape.kv_heads <= kAttentionGroupMax);
  CHECK(shape.head_dim % 16 == 0 && shape.head_dim <= kAttentionHeadDimMax);
  CHECK(pool.layout().head_dim == shape.head_dim && pool.layout().kv_heads == shape.kv_heads);
  CHECK(pool.layout().chunk_tokens % 16 == 0);
  AttentionShape rounded = shape;
  for (float& slope : rounded.alibi_slopes) slope = Bf16ToF32(F32ToBf16(slope));
  if (compute.cuda() == nullptr) return NewCpuAttention(compute, std::move(rounded), pool);
  CHECK(CheckAttentionBackend(backend, compute.path(), shape.head_dim).has_value());
  if (backend == AttentionBackend::kAuto) {
    const bool wgmma =
        CheckAttentionBackend(AttentionBackend::kWgmma, compute.path(), shape.head_dim).has_value();
    backend = wgmma ? AttentionBackend::kWgmma : AttentionBackend::kMma;
  }
  return NewCudaAttention(compute, std::move(rounded), pool, limits, backend);
}

Status CheckAttentionBackend(AttentionBackend backend, NumericPath path, int head_dim) {
  constexpr int kCapability = 90;  // neither less nor more
  constexpr int kWgmmaHeadDimMax = 128;
  if (!OnCuda(path) || backend != AttentionBackend::kWgmma) return {};
  ASSIGN_OR_RETURN(const CudaDevice* const device, CudaDevice::Get());
  if (device->capability() != kCapability) {
    return Fail(ErrorCode::kUnsupported,
                "--attention-backend wgmma needs compute capability 9.0, as of an H100: {} has "
                "{}.{}; use mma",
                device->name(), device->capability() / 10, device->capability() % 10);
  }
  if (head_dim > kWgmmaHeadDimMax) {
    return Fail(ErrorCode::kUnsupported,
                "--attention-backend wgmma is for heads of up to {} dimensions, not {}; use mma",
                kWgmmaHeadDimMax, head_dim);
  }
  return {};
}

}  // namespace kvcake
