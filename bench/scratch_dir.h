// A new directory for what a bench writes, removed with all it holds.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"

namespace kvcake::bench {

class ScratchDir {
 public:
  // PARENT/<name>-XXXXXX; an empty parent is CacheDir().
  static Result<ScratchDir> Make(const std::string& parent, const std::string& name);
  ScratchDir() = default;  // of none
  ~ScratchDir();
  ScratchDir(ScratchDir&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ScratchDir& operator=(ScratchDir&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kvcake::bench
