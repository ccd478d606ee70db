// Work on rows, each by itself.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/compute.h"

namespace kvcake {

// body(row) for every row, on the CPU's threads: a few rows a task, which are worth handing out.
template <typename Body>
void ForEachRow(const Compute& compute, int64_t rows, Body body) {
  constexpr int64_t kRowsPerTask = 8;
  compute.pool().ParallelFor((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) body(row);
  });
}

}  // namespace kvcake
