#include "base/cgroup.h"

#include <algorithm>
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
    // As text: libstdc++ 12 frees parts of a path twice when memory runs out as one is joined.
    std::string path = line.substr(second + 1);
    path.erase(0, std::min(path.find_first_not_of('/'), path.size()));
    std::string mount = files.mounts.native() + '/';
    if (!controllers.empty()) mount += controllers + '/';
    while (true) {
      dirs.emplace_back(mount + path);
      if (path.empty()) break;
      const size_t slash = path.rfind('/');
      path.resize(slash == std::string::npos ? 0 : slash);
    }
  }
  return dirs;
}

}  // namespace kvcake
