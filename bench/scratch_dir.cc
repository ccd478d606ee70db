#include "bench/scratch_dir.h"

#include <fmt/core.h>
#include <stdlib.h>

#include <filesystem>
#include <string_view>

#include "bench/harness.h"

namespace kvcake::bench {
namespace {

constexpr std::string_view kPattern = "-XXXXXX";

// Made in each and locked by whoever uses it: a directory without it is somebody else's.
std::string LockPath(const std::string& dir) { return dir + "/.kvcake-scratch"; }

bool IsNamed(std::string_view file, std::string_view name) {
  return file.size() == name.size() + kPattern.size() && file.starts_with(name) &&
         file[name.size()] == '-';
}

void RemoveAbandoned(const std::string& parent, const std::string& name) {
  FileSystem& files = FileSystem::Real();
  const auto entries = files.List(parent);
  if (!entries) return;
  for (const DirEntry& entry : *entries) {
    if (!IsNamed(entry.name, name) || entry.info.kind != FileInfo::Kind::kDirectory) continue;
    const std::string dir = parent + "/" + entry.name;
    if (!files.Stat(LockPath(dir))) continue;
    const auto lock = files.TryLock(LockPath(dir));
    std::error_code ignored;
    if (lock && *lock) std::filesystem::remove_all(dir, ignored);
  }
}

}  // namespace

Result<ScratchDir> ScratchDir::Make(const std::string& parent, const std::string& name) {
  const std::string above = parent.empty() ? CacheDir() : parent;
  std::error_code error;
  std::filesystem::create_directories(above, error);
  RemoveAbandoned(above, name);
  for (;;) {
    ScratchDir dir;
    std::string path = fmt::format("{}/{}{}", above, name, kPattern);
    if (error || mkdtemp(path.data()) == nullptr) {
      return Fail(ErrorCode::kIo, "cannot make a directory in {}: name another with --dir", above);
    }
    dir.path_ = path;
    auto lock = FileSystem::Real().TryLock(LockPath(path));
    if (!lock) return dir;
    // Another bench may have taken it for abandoned before it was locked.
    if (*lock == nullptr || !FileSystem::Real().Stat(LockPath(path))) continue;
    dir.lock_ = std::move(*lock);
    return dir;
  }
}

ScratchDir::~ScratchDir() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace kvcake::bench
