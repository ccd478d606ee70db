// Whether a directory is one that kvcake can read a model from.
#pragma once

#include <string>

#include "base/status.h"

namespace kvcake {

// kNotFound or kIo when `dir` is no directory that can be listed; kUnsupported, with the remedy,
// when it holds weights of another kind (GGUF, PyTorch) and no safetensors.
Status CheckModelDir(const std::string& dir);

}  // namespace kvcake
