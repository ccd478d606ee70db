#include "base/peak_rss.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace kvcake {

bool ResetPeakRss() {
  std::ofstream file("/proc/self/clear_refs");
  file << 5;  // "reset the peak resident set size", proc(5)
  return static_cast<bool>(file.flush());
}

uint64_t PeakRssBytes() {
  std::ifstream file("/proc/self/status");
  const std::string key = "VmHWM:";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::stoull(line.substr(key.size())) << 10;
  }
  return 0;
}

uint64_t RssBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace kvcake
