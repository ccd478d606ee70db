// bench load's part about memory: pages between the host's and the device's.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "bench/benches.h"

namespace kvcake::bench {

// How fast the page copier moves chunks to and from the CUDA device, as a share of plain copies of
// the same page-locked memory on the device's own stream. Prints a table and adds to `json`. Checks
// that what came back is what was sent. There is a device.
Status MeasureCopies(const LoadOptions& options, nlohmann::ordered_json* json);

}  // namespace kvcake::bench
