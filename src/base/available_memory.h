// How much memory there is left.
#pragma once

#include <cstdint>

#include "base/cgroup.h"

namespace kvcake {

// What the kernel could give this process without swapping, and within the limits of its cgroups.
uint64_t AvailableMemoryBytes(const CgroupFiles& files = {},
                              const std::filesystem::path& meminfo = "/proc/meminfo");

}  // namespace kvcake
