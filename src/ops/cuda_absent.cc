// Builds without CUDA have no device, and never get to the rest.
#include <cstdlib>

#include "ops/attention_backends.h"
#include "ops/cuda_kernels.h"
#include "ops/cuda_page_copier.h"

namespace kvcake {

Result<CudaDevice*> CudaDevice::Get() {
  return Fail(ErrorCode::kUnsupported,
              "this kvcake was built without CUDA: ./dev build --cuda makes one that has it");
}
uint64_t CudaDevice::free_bytes() const { return 0; }
Result<std::byte*> CudaDevice::Allocate(uint64_t) { std::abort(); }
Result<std::byte*> CudaDevice::AllocatePinned(uint64_t) { std::abort(); }
void CudaDevice::Free(std::byte*) { std::abort(); }
void CudaDevice::FreePinned(std::byte*, uint64_t) { std::abort(); }
void CudaDevice::CopyToDevice(void*, const void*, uint64_t) { std::abort(); }
void CudaDevice::CopyToHost(void*, const void*, uint64_t) { std::abort(); }
void CudaDevice::Zero(void*, uint64_t) { std::abort(); }
void CudaDevice::Upload(void*, const void*, uint64_t) { std::abort(); }
void CudaDevice::Wait() { std::abort(); }

std::unique_ptr<Attention> NewCudaAttention(const Compute&, AttentionShape, const PagePool&,
                                            const AttentionLimits&, AttentionBackend) {
  std::abort();
}

std::unique_ptr<PageCopier> NewCudaPageCopier() { std::abort(); }

namespace cuda {

Result<std::unique_ptr<StepGraph>> Capture(CudaDevice&, const StepGraphs::Enqueue&) {
  std::abort();
}

void RmsNorm(CudaDevice&, const float*, const NormWeights&, const Activations&) { std::abort(); }
bool ProductsNormalize(const CudaDevice&, const Activations&) { std::abort(); }
void MatMulQkv(CudaDevice&, const Activations&, const PackedMatrix&, const QkvShape&, float*,
               const float*, std::span<const KvSlot>, const KvStride&) {
  std::abort();
}
void JoinProducts(CudaDevice&, Join) { std::abort(); }
void LayerNorm(CudaDevice&, const float*, const NormWeights&, const Activations&) { std::abort(); }
void RopeTable(CudaDevice&, std::span<const int32_t>, std::span<const float>, float, float*) {
  std::abort();
}
void NormHeads(CudaDevice&, const QkvShape&, const NormWeights&, const NormWeights&,
               std::span<float>) {
  std::abort();
}
void RopeAndStoreKv(CudaDevice&, const QkvShape&, float*, const float*, std::span<const KvSlot>,
                    const KvStride&) {
  std::abort();
}
void Embed(CudaDevice&, const PackedMatrix&, std::span<const int32_t>, float*) { std::abort(); }
void TakeRows(CudaDevice&, const float*, std::span<const int32_t>, int64_t, float*) {
  std::abort();
}
void MatMul(CudaDevice&, const Activations&, const PackedMatrix&, float*, int64_t, bool) {
  std::abort();
}
void MatMulSwiGlu(CudaDevice&, const Activations&, const PackedMatrix&, const Activations&) {
  std::abort();
}
void MatMulGelu(CudaDevice&, const Activations&, const PackedMatrix&, const Activations&) {
  std::abort();
}
void SumWords(CudaDevice&, std::span<const uint64_t>, uint64_t*) { std::abort(); }
void SampleTokens(CudaDevice&, const LogitRows&, std::span<const RowSampling>, int32_t*) {
  std::abort();
}

}  // namespace cuda
}  // namespace kvcake
