// A file that has nothing and takes nothing, and says that all is well: what a test's own file is
// made from.
#pragma once

#include <string>
#include <utility>

#include "io/file_system.h"

namespace kvcake {

class EmptyFile : public File {
 public:
  explicit EmptyFile(std::string path) : path_(std::move(path)) {}
  Result<size_t> ReadAt(std::span<std::byte>, uint64_t) override { return size_t{0}; }
  Result<size_t> WriteAt(std::span<const std::span<const std::byte>>, uint64_t) override {
    return size_t{0};
  }
  Result<FileInfo> Info() override { return FileInfo{}; }
  Status Sync() override { return {}; }
  Status Close() override { return {}; }
  Status SetAttribute(const char*, std::string_view) override { return {}; }
  int fd() const override { return -1; }
  bool direct() const override { return false; }
  const std::string& path() const override { return path_; }

 private:
  const std::string path_;
};

}  // namespace kvcake
