#include "server/process_metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>

namespace kvcake {
namespace {

// The value that a scrape has of this process; -1: it has none.
double Scraped(const std::string& name) {
  PrometheusText text;
  AddProcess(&text);
  const size_t at = text.text().find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.text().substr(at + name.size() + 2));
}

TEST(ProcessMetricsTest, MemoryIsThatOfTheProcess) {
  constexpr size_t kBytes = 64 << 20;
  const double virtual_before = Scraped("process_virtual_memory_bytes");
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const double before = Scraped("process_resident_memory_bytes");
  EXPECT_GT(before, 0);
  EXPECT_GE(Scraped("process_virtual_memory_bytes"), virtual_before + kBytes);
  std::memset(memory, 1, kBytes);
  EXPECT_GT(Scraped("process_resident_memory_bytes"), before + kBytes / 2);
  munmap(memory, kBytes);
}

TEST(ProcessMetricsTest, ItHasStartedAndUsesTime) {
  const double now = static_cast<double>(std::time(nullptr));
  EXPECT_LE(Scraped("process_start_time_seconds"), now + 2);
  EXPECT_GT(Scraped("process_start_time_seconds"), now - 86400);
  const double before = Scraped("process_cpu_seconds_total");
  EXPECT_GE(before, 0);
  while (static_cast<double>(std::clock()) / CLOCKS_PER_SEC < before + 0.1) {
  }
  EXPECT_GT(Scraped("process_cpu_seconds_total"), before);
}

// What the kernel does for the process counts as well as what it does itself.
TEST(ProcessMetricsTest, TimeInTheKernelIsUsedToo) {
  const auto used = [](timeval rusage::*kind) {
    rusage usage = {};
    EXPECT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    return static_cast<double>((usage.*kind).tv_sec) + 1e-6 * (usage.*kind).tv_usec;
  };
  for (const double before = used(&rusage::ru_stime); used(&rusage::ru_stime) < before + 0.2;) {
  }
  const double user_s = used(&rusage::ru_utime), system_s = used(&rusage::ru_stime);
  EXPECT_GT(Scraped("process_cpu_seconds_total"), user_s + system_s - 0.1);  // it counts in ticks
}

TEST(ProcessMetricsTest, DescriptorsAreCounted) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::ifstream file("/proc/self/stat");
  double open = 0;
  for (int fd = 0; fd < 4096; ++fd) open += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  EXPECT_EQ(Scraped("process_open_fds"), open);
  EXPECT_EQ(Scraped("process_max_fds"), static_cast<double>(limit.rlim_cur));
}

}  // namespace
}  // namespace kvcake
