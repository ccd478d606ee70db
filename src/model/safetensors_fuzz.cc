// Any bytes as the weights of a model: refused, or tensors that lie inside the file and are found
// as they are. An input that begins with '{' is an index up to its first NUL, and then its shard
// "s"; any other is model.safetensors.
#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "model/fuzz_dir_testing.h"
#include "model/safetensors.h"
#include "model/tensor_scan.h"

using namespace kvcake;

namespace {

constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::string Write(const uint8_t* data, size_t size) {
  if (size == 0 || data[0] != '{') return FuzzDir(kWhole, data, size);
  const uint8_t* shard = std::find(data, data + size, 0);
  const std::string dir = FuzzDir(kIndex, data, static_cast<size_t>(shard - data));
  std::filesystem::remove(dir + "/" + kWhole);  // it would be read first
  if (shard != data + size) ++shard;
  return FuzzDir("s", shard, static_cast<size_t>(data + size - shard));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto files = TensorFiles::Open(Write(data, size));
  if (!files) {
    CHECK(!files.error().message.empty());
    return 0;
  }
  size_t total = 0;
  for (const auto& [name, tensor] : files->tensors()) {
    total += tensor.bytes.size();
    const auto found = files->Get(name, tensor.shape);
    CHECK(found && found->bytes.data() == tensor.bytes.data());
    std::vector<int64_t> wrong = tensor.shape;
    wrong.push_back(1);
    CHECK(files->Get(name, wrong).error().code == ErrorCode::kInvalidArgument);
  }
  CHECK(total <= size);
  TensorScan(*files).WeightsDigest();  // reads every byte
  return 0;
}
