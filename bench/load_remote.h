// How fast chunks come from Redis or S3.
#pragma once

#include "base/status.h"
#include "bench/benches.h"

namespace kvcake::bench {

// Measures the store that options.store names, beside a bare loop that reads the same values in the
// same run. What is written for it is removed, also where it fails. kInvalidArgument where it is a
// directory, kUnsupported where the loop cannot read it.
Status MeasureRemote(const LoadOptions& options);

}  // namespace kvcake::bench
