// Safetensors files for tests, right and wrong.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/temp_dir_testing.h"

namespace kvcake {

inline std::string FileBytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  return bytes + header + data;
}

// A directory of the test's own, for a model's files.
class SafetensorsDirTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << bytes;
  }

  const TempDir temp_;
  const std::string dir_ = temp_.path();
};

// One entry of a header.
inline nlohmann::json Tensor(const char* dtype, const nlohmann::json& shape, uint64_t begin,
                             uint64_t end) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
}

}  // namespace kvcake
