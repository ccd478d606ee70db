// A new directory for what a bench writes, removed with all it holds.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "io/file_system.h"

namespace kvcake::bench {

// A bench that is interrupted leaves its directory to the next one that makes one of the same name
// beside it.
class ScratchDir {
 public:
  // PARENT/<name>-XXXXXX; an empty parent is CacheDir().
  static Result<ScratchDir> Make(const std::string& parent, const std::string& name);
  ScratchDir() = default;  // of none
  ~ScratchDir();
  ScratchDir(ScratchDir&& other) noexcept
      : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}
  ScratchDir& operator=(ScratchDir&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(lock_, other.lock_);
    return *this;
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::unique_ptr<FileLock> lock_;  // says that somebody uses it; null where none can be had
};

}  // namespace kvcake::bench
