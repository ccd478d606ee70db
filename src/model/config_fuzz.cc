// Any bytes as config.json: refused, or a configuration that makes sense.
#include "base/check.h"
#include "model/config.h"
#include "model/fuzz_dir_testing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = kvcake::LoadModelConfig(kvcake::FuzzDir("config.json", data, size));
  if (config) CHECK(config->layers > 0 && config->head_dim > 0 && config->parameters() > 0);
  return 0;
}
