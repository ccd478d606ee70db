// models/demo, as the server's tests run it.
#pragma once

#include <memory>

#include "base/source_dir_testing.h"
#include "engine/runtime.h"

namespace kvcake::testing_util {

// One thread and 8 MiB of pages; nothing is stored.
inline std::unique_ptr<Runtime> DemoRuntime() {
  return Runtime::Create({.model_dir = SourceDir() + "/models/demo",
                          .ram_capacity_bytes = 8 << 20,
                          .threads = 1,
                          .keep_costs = false})
      .value();
}

}  // namespace kvcake::testing_util
