// OpenBLAS's f32 product, to compare with. Loaded when it is asked for: a program that is linked
// with it would start its threads.
#pragma once

#include <cstdint>

namespace kvcake::bench {

class OpenBlas {
 public:
  // Null where libopenblas.so.0 is not installed. It keeps to the calling thread.
  static const OpenBlas* Load();

  // c[m][n] = a[m][k] x b[k][n]. From several threads at once.
  void Multiply(int m, int n, int k, const float* a, const float* b, float* c) const;

 private:
  using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k,
                         float alpha, const float* a, int lda, const float* b, int ldb, float beta,
                         float* c, int ldc);
  explicit OpenBlas(Sgemm sgemm) : sgemm_(sgemm) {}

  const Sgemm sgemm_;
};

}  // namespace kvcake::bench
