// What this machine's CPU can do; decided once, at first use.
#pragma once

#include <string>

namespace kvcake {

struct CpuFeatures {
  bool avx2_fma = false;     // AVX2 and FMA
  bool avx512 = false;       // AVX-512 F, BW, DQ and VL
  bool avx512_bf16 = false;  // and dot products of BF16 and of bytes (VNNI)
};

const CpuFeatures& Cpu();
// As the kernel names it, e.g. "AMD EPYC 9B14"; printed beside every measured figure.
std::string CpuName();
// Cores this process may run on (respects affinity and cgroup limits as the kernel reports them).
int UsableCores();

}  // namespace kvcake
