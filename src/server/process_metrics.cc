#include "server/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace kvcake {
namespace {

// The fields of /proc/self/stat that follow the program's name, which may hold anything.
std::vector<double> StatFields() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream rest(line.substr(std::min(line.rfind(')') + 1, line.size())));
  std::string state;
  rest >> state;
  return {std::istream_iterator<double>(rest), {}};
}

// When the machine was started, in seconds of the Unix epoch.
std::optional<double> BootTime() {
  std::ifstream file("/proc/stat");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("btime ")) return std::stod(line.substr(6));
  }
  return std::nullopt;
}

std::optional<double> OpenDescriptors() {
  std::error_code error;
  std::filesystem::directory_iterator descriptors("/proc/self/fd", error);
  double open = -1;  // the one that lists them is no more when they are told
  for (; !error && descriptors != std::filesystem::directory_iterator();
       descriptors.increment(error)) {
    ++open;
  }
  return error ? std::nullopt : std::optional(open);
}

}  // namespace

void AddProcess(PrometheusText* text) {
  // As proc(5) numbers them; the first here is the 4th.
  enum { kUserTime = 14 - 4, kSystemTime = 15 - 4, kStart = 22 - 4, kVirtual = 23 - 4, kRss };
  const std::vector<double> stat = StatFields();
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (stat.size() > kRss) {
    text->AddGauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", stat[kVirtual]);
    text->AddGauge("process_resident_memory_bytes", "Resident memory size in bytes.",
                   stat[kRss] * static_cast<double>(sysconf(_SC_PAGESIZE)));
    text->AddCounter("process_cpu_seconds_total",
                     "Total user and system CPU time spent in seconds.",
                     (stat[kUserTime] + stat[kSystemTime]) / ticks);
    if (const auto boot = BootTime()) {
      text->AddGauge("process_start_time_seconds",
                     "Start time of the process since unix epoch in seconds.",
                     *boot + stat[kStart] / ticks);
    }
  }
  if (const auto open = OpenDescriptors()) {
    text->AddGauge("process_open_fds", "Number of open file descriptors.", *open);
  }
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    text->AddGauge("process_max_fds", "Maximum number of open file descriptors.",
                   static_cast<double>(limit.rlim_cur));
  }
}

}  // namespace kvcake
