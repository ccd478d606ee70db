// Counters by which the blocks of a kernel learn who of them is the last. Private to this room.
#pragma once

#include <cstdint>

#include "ops/cuda_device.h"

namespace kvcake::cuda {

constexpr int64_t kCountersMax = 4096;

// kCountersMax of the device's, for one operation; 0 between operations, so who counts puts them
// back. The first call takes their memory.
unsigned* CountersOf(CudaDevice& device);

}  // namespace kvcake::cuda
