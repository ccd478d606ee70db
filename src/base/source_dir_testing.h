// Where the files of this repository are, for tests that read some of them.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace kvcake {

// As compiled; the environment's KVCAKE_SOURCE_DIR for programs that run on another machine.
inline std::filesystem::path SourceDir() {
  const char* moved = std::getenv("KVCAKE_SOURCE_DIR");
  return moved != nullptr ? moved : KVCAKE_SOURCE_DIR;
}

}  // namespace kvcake
