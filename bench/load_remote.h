// How fast chunks come from Redis or S3.
#pragma once

#include "base/status.h"
#include "bench/benches.h"

namespace kvcake::bench {

// Measures the store that options.store names, beside a bare loop that reads the same values in the
// same run. What is written for it is removed. kInvalidArgument where it is a directory.
Status MeasureRemote(const LoadOptions& options);

}  // namespace kvcake::bench
