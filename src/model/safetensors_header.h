// The header of one safetensors file: where its tensors lie, checked against the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/safetensors.h"

namespace kvcake {

struct TensorEntry {
  std::string name;
  TensorView view;  // into the file
  uint64_t begin = 0;
  bool read = true;  // false: of another type, and no weight or bias: `view` has no bytes of it
};

// All tensors of a mapped file, in the order of their bytes, which they fill without overlap or
// hole. kCorrupt and kUnsupported name the file and the tensor;
// `path` is only for that. Takes memory for the header's entries alone, and only once its size is
// known to be true.
Result<std::vector<TensorEntry>> ReadSafetensorsHeader(std::span<const std::byte> file,
                                                       const std::string& path);

}  // namespace kvcake
