#include "bench/openblas.h"

#include <dlfcn.h>

#include <cstdlib>

namespace kvcake::bench {

namespace {
constexpr int kRowMajor = 101, kNoTranspose = 111;  // of cblas.h
}

const OpenBlas* OpenBlas::Load() {
  static const OpenBlas* const loaded = []() -> const OpenBlas* {
    setenv("OPENBLAS_NUM_THREADS", "1", /*overwrite=*/1);  // read when it is loaded
    void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    const auto sgemm = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
    return sgemm != nullptr ? new OpenBlas(sgemm) : nullptr;  // for as long as the process
  }();
  return loaded;
}

void OpenBlas::Multiply(int m, int n, int k, const float* a, const float* b, float* c) const {
  sgemm_(kRowMajor, kNoTranspose, kNoTranspose, m, n, k, 1, a, k, b, n, 0, c, n);
}

}  // namespace kvcake::bench
