// Attention on the CPU and on a CUDA device. Private to this room; their arguments have been
// checked by Attention::Create, and ALiBi's slopes rounded to bf16.
#pragma once

#include <memory>

#include "ops/attention.h"

namespace kvcake {

std::unique_ptr<Attention> NewCpuAttention(const Compute& compute, AttentionShape shape,
                                           const PagePool& pool);
// Needs pages that lie in one segment of the device's memory. `backend` is not kAuto.
std::unique_ptr<Attention> NewCudaAttention(const Compute& compute, AttentionShape shape,
                                            const PagePool& pool, const AttentionLimits& limits,
                                            AttentionBackend backend);

}  // namespace kvcake
