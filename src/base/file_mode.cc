#include "base/file_mode.h"

#include <fmt/core.h>
#include <sys/stat.h>

namespace kvcake {

std::string ModeFault(mode_t mode, const std::string& path, mode_t forbidden) {
  if ((mode & forbidden) == 0) return "";
  return fmt::format("has mode {:03o}: others than its owner may use it; run chmod 600 {}",
                     mode & 07777, path);
}

std::string ModeFault(const std::string& path, mode_t forbidden) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return "";
  return ModeFault(info.st_mode, path, forbidden);
}

}  // namespace kvcake
