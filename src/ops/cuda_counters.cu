#include "ops/cuda_counters.h"

namespace kvcake::cuda {

unsigned* CountersOf(CudaDevice& device) {
  static unsigned* const counters = [&device] {  // there is one device
    constexpr uint64_t kBytes = kCountersMax * sizeof(unsigned);
    std::byte* const memory = device.Allocate(kBytes).value();
    device.Zero(memory, kBytes);
    return reinterpret_cast<unsigned*>(memory);
  }();
  return counters;
}

}  // namespace kvcake::cuda
