#include "base/source_dir_testing.h"

#include <cstdlib>

namespace kvcake {

std::string SourceDir() {
  const char* moved = std::getenv("KVCAKE_SOURCE_DIR");
  return moved != nullptr ? moved : KVCAKE_SOURCE_DIR;
}

}  // namespace kvcake
