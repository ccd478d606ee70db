#include "bench/scratch_dir.h"

#include <stdlib.h>

#include <filesystem>

#include "bench/harness.h"

namespace kvcake::bench {

Result<ScratchDir> ScratchDir::Make(const std::string& parent, const std::string& name) {
  const std::string above = parent.empty() ? CacheDir() : parent;
  std::error_code error;
  std::filesystem::create_directories(above, error);
  std::string path = above + "/" + name + "-XXXXXX";
  if (error || mkdtemp(path.data()) == nullptr) {
    return Fail(ErrorCode::kIo, "cannot make a directory in {}: name another with --dir", above);
  }
  ScratchDir dir;
  dir.path_ = path;
  return dir;
}

ScratchDir::~ScratchDir() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace kvcake::bench
