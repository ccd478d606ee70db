// Counts the files that this process has open.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace kvcake::testing_util {

inline size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

}  // namespace kvcake::testing_util
