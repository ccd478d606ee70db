#include "base/cpu.h"

#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <thread>

#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CgroupTest : public testing::Test {
 protected:
  void Write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((dir_ / file).parent_path());
    std::ofstream(dir_ / file) << text;
  }
  int Cores(int limit) const {
    return CgroupCores(limit, {.membership = dir_ / "cgroup", .mounts = dir_ / "mounts"});
  }

  const TempDir temp_;
  const std::filesystem::path dir_ = temp_.path();
};

TEST_F(CgroupTest, WithoutAnyEveryCpuIsUsable) {
  EXPECT_EQ(Cores(16), 16);
  Write("cgroup", "0::/\n");
  EXPECT_EQ(Cores(16), 16);
  Write("cgroup", "nonsense\n:\n0:");
  EXPECT_EQ(Cores(16), 16);
}

TEST_F(CgroupTest, Version2TakesTheLeastOfAllAround) {
  Write("cgroup", "0::/a/b\n");
  Write("mounts/cpu.max", "max 100000\n");
  Write("mounts/a/cpu.max", "600000 100000\n");
  Write("mounts/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(Cores(16), 6);
  EXPECT_EQ(Cores(4), 4);
  Write("mounts/a/b/cpu.max", "150000 100000\n");
  EXPECT_EQ(Cores(16), 2);
  Write("mounts/a/b/cpu.max", "1000 100000\n");
  EXPECT_EQ(Cores(16), 1);
  Write("mounts/a/b/cpu.max", "");
  EXPECT_EQ(Cores(16), 6);
}

TEST_F(CgroupTest, AContainerMayOnlySeeTheMount) {
  Write("cgroup", "0::/docker/0123\n");
  Write("mounts/cpu.max", "300000 100000\n");
  EXPECT_EQ(Cores(16), 3);
}

TEST_F(CgroupTest, Version1HasAFileForEachNumber) {
  Write("cgroup", "5:memory:/m\n4:cpu,cpuacct:/a\n3:cpuset:/\n");
  Write("mounts/cpu,cpuacct/a/cpu.cfs_quota_us", "200000\n");
  Write("mounts/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n");
  Write("mounts/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  Write("mounts/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  Write("mounts/memory/m/cpu.cfs_quota_us", "1\n");
  Write("mounts/memory/m/cpu.cfs_period_us", "1\n");
  EXPECT_EQ(Cores(16), 4);
}

// Also where the kernel knows no time slices, or is not asked: nothing else of the thread changes.
TEST(RunPromptlyTest, AsksForTheShortestTimeSlice) {
  std::thread([] {
    RunPromptly();
    std::array<uint64_t, 7> attributes{};  // sched_getattr(2)
    ASSERT_EQ(syscall(SYS_sched_getattr, 0, attributes.data(), sizeof(attributes), 0), 0);
    const uint64_t runtime_ns = attributes[3];
    EXPECT_TRUE(runtime_ns == 100'000 || runtime_ns == 0) << runtime_ns;
    EXPECT_EQ(sched_getscheduler(0) & ~SCHED_RESET_ON_FORK, SCHED_OTHER);
  }).join();
}

// Where a thread's stack for signals is too small for tiles, the kernel grants none.
TEST(AmxDeathTest, TheKernelsRefusalIsTold) {
  std::ifstream file("/proc/cpuinfo");
  const std::string cpuinfo{std::istreambuf_iterator<char>(file), {}};
  if (cpuinfo.find("amx_bf16") == std::string::npos) GTEST_SKIP() << "this machine has no AMX";
  const auto ask = [] {
    static std::array<std::byte, 6 << 10> memory;
    const stack_t stack = {.ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
    if (sigaltstack(&stack, nullptr) != 0) _exit(2);
    const Status& answer = AskForAmx();
    if (answer || answer.error().code != ErrorCode::kIo) _exit(1);
    fmt::print(stderr, "{}\n", answer.error().message);
    _exit(0);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not asked yet
  EXPECT_EXIT(ask(), testing::ExitedWithCode(0), "lets this process use no AMX");
}

TEST(CpuListTest, NumbersAndRanges) {
  const std::vector<int> allowed = AllowedCpus();
  ASSERT_FALSE(allowed.empty());
  EXPECT_GE(static_cast<int>(allowed.size()), UsableCores());
  const std::string first = std::to_string(allowed[0]);
  EXPECT_THAT(ParseCpuList(first).value(), ElementsAre(allowed[0]));
  EXPECT_THAT(ParseCpuList(first + "-" + first).value(), ElementsAre(allowed[0]));
  if (allowed.size() > 1) {
    const std::string list = std::to_string(allowed[1]) + "," + first;
    EXPECT_THAT(ParseCpuList(list).value(), ElementsAre(allowed[1], allowed[0]));
  }
}

TEST(CpuListTest, RefusesByName) {
  for (const char* bad : {"", ",", "a", "0-", "-1", "3-1", "0,", "0-1-2", "99999", "0x1", " 0"}) {
    const auto cpus = ParseCpuList(bad);
    ASSERT_FALSE(cpus) << bad;
    EXPECT_THAT(cpus.error().message, HasSubstr("range of CPUs")) << bad;
  }
  const std::string cpu = std::to_string(AllowedCpus()[0]);
  EXPECT_THAT(ParseCpuList(cpu + "," + cpu).error().message, HasSubstr("twice"));
  EXPECT_THAT(ParseCpuList("1023").error().message, HasSubstr("CPU 1023"));
}

TEST(RestrictToCpusTest, WhereAThreadCannotRunIsAnErrorAndItStaysWhereItWas) {
  const std::vector<int> allowed = AllowedCpus();
  const Status restricted = RestrictToCpus({});
  ASSERT_FALSE(restricted);
  EXPECT_THAT(restricted.error().message, HasSubstr("cannot run on the CPUs asked for"));
  EXPECT_EQ(AllowedCpus(), allowed);
}

}  // namespace
}  // namespace kvcake
