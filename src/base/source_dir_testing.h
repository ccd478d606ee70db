// Where the files of this repository are, for tests that read some of them.
#pragma once

#include <string>

namespace kvcake {

// As compiled; the environment's KVCAKE_SOURCE_DIR for programs that run on another machine.
std::string SourceDir();

}  // namespace kvcake
