// bench load's part about compute: what loading as fast as it goes does to a slice of prefill.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bench/benches.h"

namespace kvcake::bench {

// Slices of options.beside's prefill alone, and while chunks are read from a store in `dir` again
// and again, and on CUDA while they are copied from page-locked memory. Prints a line for each
// source and adds to `json`.
Status MeasureBeside(const LoadOptions& options, const std::string& dir,
                     nlohmann::ordered_json* json);

}  // namespace kvcake::bench
