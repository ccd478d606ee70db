#include "base/cgroup.h"

#include <fstream>
#include <string>

namespace kvcake {

std::vector<std::filesystem::path> CgroupDirs(std::string_view controller,
                                              const CgroupFiles& files) {
  std::vector<std::filesystem::path> dirs;
  const std::string wanted = ',' + std::string(controller) + ',';
  std::ifstream membership(files.membership);
  // hierarchy:controllers:path; version 2 has no controllers in its line.
  for (std::string line; std::getline(membership, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && (',' + controllers + ',').find(wanted) == std::string::npos) {
      continue;
    }
    auto path = std::filesystem::path(line.substr(second + 1)).relative_path();
    const auto mount = controllers.empty() ? files.mounts : files.mounts / controllers;
    while (true) {
      dirs.push_back(mount / path);
      if (path.empty()) break;
      path = path.parent_path();
    }
  }
  return dirs;
}

}  // namespace kvcake
