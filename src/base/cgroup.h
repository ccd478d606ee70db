// The cgroups that limit this process, as of a container.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace kvcake {

// Where cgroups of version 1 and 2 are described; tests have their own.
struct CgroupFiles {
  std::filesystem::path membership = "/proc/self/cgroup";
  std::filesystem::path mounts = "/sys/fs/cgroup";
};

// The directories of this process's cgroups that have this controller, and of all above them. What
// is not there limits nothing: a container may see its own cgroup as the mount itself, and its path
// from outside.
std::vector<std::filesystem::path> CgroupDirs(std::string_view controller,
                                              const CgroupFiles& files = {});

}  // namespace kvcake
