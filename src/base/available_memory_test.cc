#include "base/available_memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

class AvailableMemoryTest : public testing::Test {
 protected:
  void Write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((dir_ / file).parent_path());
    std::ofstream(dir_ / file) << text;
  }
  uint64_t Available() const {
    return AvailableMemoryBytes({dir_ / "self", dir_ / "cgroup"}, dir_ / "meminfo");
  }

  const TempDir temp_;
  const std::filesystem::path dir_ = temp_.path();
};

TEST_F(AvailableMemoryTest, IsTheMachinesWithoutALimit) {
  Write("meminfo", "MemTotal:  9000 kB\nMemFree:  100 kB\nMemAvailable:    4000 kB\n");
  EXPECT_EQ(Available(), 4000u << 10);
  Write("self", "0::/a/b\n");
  Write("cgroup/a/memory.max", "max\n");
  Write("cgroup/a/memory.current", "1000\n");
  EXPECT_EQ(Available(), 4000u << 10);
}

TEST_F(AvailableMemoryTest, IsWhatTheTightestCgroupLeaves) {
  Write("meminfo", "MemAvailable: 4000 kB\n");
  Write("self", "0::/a/b\n");
  Write("cgroup/a/memory.max", "3000000\n");
  Write("cgroup/a/memory.current", "2000000\n");
  EXPECT_EQ(Available(), 1000000u);
  Write("cgroup/a/b/memory.max", "500\n");
  Write("cgroup/a/b/memory.current", "600\n");
  EXPECT_EQ(Available(), 0u) << "over its limit";
}

TEST_F(AvailableMemoryTest, KnowsTheFirstVersionToo) {
  Write("meminfo", "MemAvailable: 4000 kB\n");
  Write("self", "5:cpu,cpuacct:/x\n4:memory:/x\n");
  Write("cgroup/memory/x/memory.limit_in_bytes", "3000\n");
  Write("cgroup/memory/x/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(Available(), 2000u);
}

TEST_F(AvailableMemoryTest, OfThisMachineThereIsSome) { EXPECT_GT(AvailableMemoryBytes(), 0u); }

}  // namespace
}  // namespace kvcake
