// The memory that this process has resident, and the most that it has had.
#pragma once

#include <cstdint>

namespace kvcake {

// Starts over from what is resident now. False where the kernel does not let us: the peak is then
// that of the process's life.
bool ResetPeakRss();
uint64_t PeakRssBytes();
uint64_t RssBytes();

}  // namespace kvcake
