// The one hook for everything that happens between the layers of a forward pass.
#pragma once

#include "base/status.h"

namespace kvcake {

// Belongs to one sequence's slice [start, end), or to several of it. The forward pass calls it once
// per layer, in this order: QKV, write KV, AfterKv, BeforeAttention, attention. They run alone in
// their step.
// A failed Status ends the forward pass with it. Without a gate the prefix is resident already.
class LayerGate {
 public:
  virtual ~LayerGate() = default;
  // KV of [start, end) at this layer is now in the pages; on CUDA, once the device has done what it
  // has been given by now (PageCopier::AfterOperations).
  [[nodiscard]] virtual Status AfterKv(int layer) = 0;
  // Returns when KV of [0, start) at this layer (but for other slices' own) is resident; waits have
  // a deadline.
  [[nodiscard]] virtual Status BeforeAttention(int layer) = 0;
};

}  // namespace kvcake
