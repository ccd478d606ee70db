#include "base/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <linux/sched.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <numeric>
#include <thread>

namespace kvcake {
namespace {

bool CpuHasAmx() {
#if defined(__x86_64__)
  constexpr unsigned kTiles = 1u << 24, kBf16 = 1u << 22, kInt8 = 1u << 25,
                     kAll = kTiles | kBf16 | kInt8;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAll) == kAll;
#else
  return false;
#endif
}

Status RequestAmx() {
  if (!CpuHasAmx()) return Fail(ErrorCode::kUnsupported, "the CPU has no AMX");
#if defined(__x86_64__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    return Fail(ErrorCode::kIo, "the kernel lets this process use no AMX ({}){}",
                std::strerror(errno), errno == EINVAL ? ": Linux 5.16 or newer does" : "");
  }
#endif
  return {};
}

CpuFeatures Detect() {
  CpuFeatures f;
#if defined(__x86_64__)
  f.avx2_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  f.avx512 = f.avx2_fma && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
  f.avx512_bf16 =
      f.avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  f.avx512_vbmi2 =
      f.avx512 && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
#endif
  return f;
}

// quota / period of one cgroup in CPUs; `limit` where there is none.
double QuotaCpus(const std::filesystem::path& dir, double limit) {
  const std::string in = dir.native() + '/';
  double quota = 0, period = 0;
  if (std::ifstream v2(in + "cpu.max"); v2 >> quota >> period) {  // or "max"
    return quota > 0 && period > 0 ? std::min(limit, quota / period) : limit;
  }
  std::ifstream quota_file(in + "cpu.cfs_quota_us"), period_file(in + "cpu.cfs_period_us");
  if (!(quota_file >> quota) || !(period_file >> period)) return limit;
  return quota > 0 && period > 0 ? std::min(limit, quota / period) : limit;  // -1: none
}

// Appends the numbers of "7" or "0-3".
Status AddCpus(std::string_view range, std::vector<int>* cpus) {
  int first = 0, last = 0;
  const char* end = range.data() + range.size();
  std::from_chars_result parsed = std::from_chars(range.data(), end, first);
  last = first;
  if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '-') {
    parsed = std::from_chars(parsed.ptr + 1, end, last);
  }
  if (parsed.ec != std::errc() || parsed.ptr != end || first < 0 || last < first ||
      last >= CPU_SETSIZE) {
    return Fail(ErrorCode::kInvalidArgument, "'{}' is no CPU and no range of CPUs such as 0-3",
                range);
  }
  for (int cpu = first; cpu <= last; ++cpu) cpus->push_back(cpu);
  return {};
}

}  // namespace

const CpuFeatures& Cpu() {
  static const CpuFeatures features = Detect();
  return features;
}

const Status& AskForAmx() {
  static const Status answer = RequestAmx();
  return answer;
}

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

int UsableCores() { return CgroupCores(static_cast<int>(AllowedCpus().size())); }

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) {
    cpus.resize(std::max(1u, std::thread::hardware_concurrency()));
    std::iota(cpus.begin(), cpus.end(), 0);
  }
  return cpus;
}

int CgroupCores(int limit, const CgroupFiles& files) {
  double cpus = limit;
  for (const auto& dir : CgroupDirs("cpu", files)) cpus = QuotaCpus(dir, cpus);
  return std::clamp(static_cast<int>(cpus + 0.5), 1, std::max(1, limit));
}

Result<std::vector<int>> ParseCpuList(std::string_view text) {
  std::vector<int> cpus;
  while (true) {
    const size_t comma = text.find(',');
    RETURN_IF_ERROR(AddCpus(text.substr(0, comma), &cpus));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  const std::vector<int> allowed = AllowedCpus();
  for (size_t i = 0; i < cpus.size(); ++i) {
    if (std::find(allowed.begin(), allowed.end(), cpus[i]) == allowed.end()) {
      return Fail(ErrorCode::kInvalidArgument, "this process may not run on CPU {}", cpus[i]);
    }
    if (std::find(cpus.begin(), cpus.begin() + i, cpus[i]) != cpus.begin() + i) {
      return Fail(ErrorCode::kInvalidArgument, "CPU {} is named twice", cpus[i]);
    }
  }
  return cpus;
}

Status RestrictToCpus(std::span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    return Fail(ErrorCode::kInvalidArgument, "cannot run on the CPUs asked for: {}",
                std::strerror(errno));
  }
  return {};
}

void RunPromptly() {
  // glibc has neither the call nor its argument (sched_setattr(2)).
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
  } attributes = {
      .size = sizeof(attributes),
      .policy = SCHED_OTHER,
      .flags = SCHED_FLAG_RESET_ON_FORK,
      .nice = getpriority(PRIO_PROCESS, 0),
      .priority = 0,
      .runtime_ns = 100'000,  // the least time slice; the scheduler runs short ones first
      .deadline_ns = 0,
      .period_ns = 0};
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

void RunInBackground() {
  const sched_param none = {};
  sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &none);
}

}  // namespace kvcake
