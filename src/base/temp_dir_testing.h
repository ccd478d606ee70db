#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "base/check.h"

namespace kvcake {

// A new directory for what a test writes, removed with all it holds. Tests run beside each other,
// so none writes where another one may.
class TempDir {
 public:
  TempDir() : path_(testing::TempDir() + "kvcake-XXXXXX") {
    CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kvcake
