#include "base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace kvcake {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

uint64_t OfMachine(const std::filesystem::path& meminfo) {
  std::ifstream file(meminfo);
  uint64_t kilobytes = 0;
  for (std::string key; file >> key;) {
    if (key == "MemAvailable:" && file >> kilobytes) return kilobytes << 10;
  }
  return kNoLimit;
}

// kNoLimit where the files are not there, or say "max".
uint64_t Left(const std::string& limit, const std::string& usage) {
  uint64_t most = 0, used = 0;
  if (!(std::ifstream(limit) >> most) || !(std::ifstream(usage) >> used)) return kNoLimit;
  return most - std::min(most, used);
}

}  // namespace

uint64_t AvailableMemoryBytes(const CgroupFiles& files, const std::filesystem::path& meminfo) {
  uint64_t bytes = OfMachine(meminfo);
  for (const auto& dir : CgroupDirs("memory", files)) {
    const std::string in = dir.native() + '/';
    bytes = std::min({bytes, Left(in + "memory.max", in + "memory.current"),
                      Left(in + "memory.limit_in_bytes", in + "memory.usage_in_bytes")});
  }
  return bytes;
}

}  // namespace kvcake
