// The tensors of a model directory: model.safetensors, or the shards that
// model.safetensors.index.json names; memory-mapped, never copied.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvcake {

enum class DType { kBf16, kF16, kF32 };
const char* DTypeName(DType dtype);  // as safetensors spells it: "BF16", ...
std::optional<DType> DTypeNamed(std::string_view name);
uint64_t DTypeBytes(DType dtype);

// Borrows from its TensorFiles.
struct TensorView {
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;

  int64_t elements() const;
};

class TensorFiles {
 public:
  // Every header is checked before anything is read or allocated: sizes, offsets, overlaps, dtypes.
  // Errors name the file and the tensor, and for weights of another kind the remedy.
  static Result<TensorFiles> Open(const std::string& dir);
  TensorFiles(TensorFiles&&) noexcept;
  TensorFiles& operator=(TensorFiles&&) noexcept;
  ~TensorFiles();

  // kNotFound when there is no such tensor, kInvalidArgument
  // when its shape differs; errors name the file and the tensor.
  Result<TensorView> Get(const std::string& name, std::span<const int64_t> shape) const;
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  // model.safetensors or the index, for errors.
  const std::string& source() const { return source_; }
  // Lets the system start to read some bytes of a tensor from the disk.
  static void ReadAhead(std::span<const std::byte> bytes);
  // Takes what has been read so far out of the process's memory, not out of the page cache. What is
  // read again is simply mapped again.
  void Release() const;
  static void Release(std::span<const std::byte> bytes);

 private:
  struct Mapping;
  TensorFiles() = default;

  std::string source_;
  std::vector<Mapping> mappings_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace kvcake
