// Reads every tensor of a model once, for its digest and for values that are no numbers, while
// whoever started it does something else: packs them, for example.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "model/safetensors.h"

namespace kvcake {

class TensorScan {
 public:
  // Starts threads for half of the usable cores: hashing is quicker than packing. Borrows the
  // files.
  explicit TensorScan(const TensorFiles& files);
  // Stops early when nobody has waited.
  ~TensorScan();
  TensorScan(const TensorScan&) = delete;
  TensorScan& operator=(const TensorScan&) = delete;

  // Each waits for the end of the scan.
  //
  // SHA-256 over the sorted (name, dtype, shape, XXH3-128 of the bytes) of all tensors: independent
  // of how the files are sharded.
  Digest WeightsDigest();
  // Whether a tensor of the files is without NaN and infinity.
  bool Finite(std::string_view name);

 private:
  struct Row {
    const std::string* name = nullptr;
    const TensorView* view = nullptr;
    std::array<uint8_t, 16> hash = {};
    bool finite = true;
  };
  void Work();
  bool Read(Row* row) const;
  void Join() { threads_.clear(); }

  std::vector<Row> rows_;      // sorted by name
  std::vector<Row*> in_file_;  // as they lie in the files
  std::atomic<size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::jthread> threads_;
};

}  // namespace kvcake
