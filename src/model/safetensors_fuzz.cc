// Any bytes as model.safetensors: refused, or tensors that lie inside the file.
#include "base/check.h"
#include "model/fuzz_dir.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto files = kvcake::TensorFiles::Open(kvcake::FuzzDir("model.safetensors", data, size));
  if (!files) return 0;
  size_t total = 0;
  for (const auto& [name, tensor] : files->tensors()) total += tensor.bytes.size();
  CHECK(total <= size);
  kvcake::WeightsDigest(*files);  // reads every byte
  return 0;
}
