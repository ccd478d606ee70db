// What this machine's CPU can do; decided once, at first use.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cgroup.h"
#include "base/status.h"

namespace kvcake {

struct CpuFeatures {
  bool avx2_fma = false;      // AVX2 and FMA
  bool avx512 = false;        // AVX-512 F, BW, DQ and VL
  bool avx512_bf16 = false;   // and dot products of BF16 and of bytes (VNNI)
  bool avx512_vbmi2 = false;  // avx512, and bytes that are permuted and expanded (VBMI, VBMI2)
};

const CpuFeatures& Cpu();
// Whether this process may use AMX's tiles of BF16 and of bytes: the kernel is asked at the first
// call, for all threads. Signals take 8 KiB more stack from then on, so who does not multiply
// should not ask. kUnsupported where the CPU has none, kIo where the kernel refuses.
const Status& AskForAmx();
// As the kernel names it, e.g. "AMD EPYC 9B14"; printed beside every measured figure.
std::string CpuName();

// How many threads can compute at once: the CPUs of AllowedCpus, as far as CgroupCores leaves them.
int UsableCores();
// The CPUs that the calling thread may run on (taskset, cpusets), by number.
std::vector<int> AllowedCpus();
// The whole CPUs, at least 1, that the CPU quotas of this process's cgroups (version 2 or 1) and of
// the cgroups around them leave of `limit`; half a CPU counts as one.
int CgroupCores(int limit, const CgroupFiles& files = {});

// "0-3,7" is {0, 1, 2, 3, 7}. kInvalidArgument for anything else, for a CPU named twice, and for
// one that the calling thread may not run on.
Result<std::vector<int>> ParseCpuList(std::string_view text);
// The calling thread, and those that it starts from now on, run on these CPUs only.
Status RestrictToCpus(std::span<const int> cpus);
// From now on the calling thread (and none that it starts) waits for its turn when it wakes,
// instead of interrupting another one: for what has time while the engine's threads have none.
void RunInBackground();
// From now on the calling thread (and none that it starts) interrupts one that computes when it
// wakes: for short work that others wait for. Linux 6.12 or newer; elsewhere as any thread.
void RunPromptly();

}  // namespace kvcake
