#include <span>
#include <vector>

#include "cublasLt.h"

struct CublasLtContext {};
struct CublasLtMatmul {
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct CublasLtLayout {  // column after column
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t stride;
};
struct CublasLtPreference {};

namespace {

using cuda_emulator::Die;

float At(const void* values, int type, int64_t i) {
  return type == CUDA_R_32F ? static_cast<const float*>(values)[i]
                            : __bfloat162float(static_cast<const __nv_bfloat16*>(values)[i]);
}

// In eight sums, as the compiler vectorises them.
float Dot(const float* a, const float* b, int64_t k) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < k; ++i) sums[0] += a[i] * b[i];
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

struct Matmul {
  CublasLtMatmul how;
  CublasLtLayout a_layout, b_layout, d_layout;
  float alpha, beta;
  const void *a, *b, *c;
  void* d;

  void Check() const {
    const bool known = how.transpose_a == CUBLAS_OP_T && a_layout.type == CUDA_R_16BF &&
                       b_layout.type == CUDA_R_16BF && a_layout.rows == b_layout.rows &&
                       a_layout.columns == d_layout.rows && b_layout.columns == d_layout.columns;
    if (!known) Die("kvcake has no such product");
    if (how.epilogue == CUBLASLT_EPILOGUE_BIAS && how.bias == nullptr) Die("there is no bias");
    // What an algorithm may count on, unless it was chosen for less.
    constexpr uintptr_t kAlignment = 256;
    for (const void* matrix : {a, b, static_cast<const void*>(d)}) {
      if (reinterpret_cast<uintptr_t>(matrix) % kAlignment != 0) Die("a matrix is not aligned");
    }
  }

  // d = alpha a' b + beta c + bias
  void Run() const {
    const auto k = static_cast<int64_t>(a_layout.rows);
    std::vector<float> columns(a_layout.columns * k), column(k);
    for (uint64_t n = 0; n < a_layout.columns; ++n) {
      for (int64_t i = 0; i < k; ++i) {
        columns[n * k + i] = At(a, a_layout.type, n * a_layout.stride + i);
      }
    }
    for (uint64_t row = 0; row < b_layout.columns; ++row) {
      for (int64_t i = 0; i < k; ++i) column[i] = At(b, b_layout.type, row * b_layout.stride + i);
      for (uint64_t n = 0; n < d_layout.rows; ++n) {
        const auto at = static_cast<int64_t>(row * d_layout.stride + n);
        float value = alpha * Dot(&columns[n * k], column.data(), k);
        if (beta != 0) value += beta * At(c, d_layout.type, at);
        if (how.epilogue == CUBLASLT_EPILOGUE_BIAS) {
          value += At(how.bias, d_layout.type, static_cast<int64_t>(n));
        }
        if (d_layout.type == CUDA_R_32F) {
          static_cast<float*>(d)[at] = value;
        } else {
          static_cast<__nv_bfloat16*>(d)[at] = __float2bfloat16_rn(value);
        }
      }
    }
  }
};

}  // namespace

const char* cublasLtGetStatusString(cublasStatus_t) { return "no error"; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new CublasLtContext();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmul, cublasComputeType_t,
                                        cudaDataType_t) {
  *matmul = new CublasLtMatmul();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmul) {
  delete matmul;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmul,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      std::memcpy(&matmul->transpose_a, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      std::memcpy(&matmul->epilogue, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      std::memcpy(&matmul->bias, value, bytes);
      break;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  *layout = new CublasLtLayout{type, rows, columns, stride};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new CublasLtPreference();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  *results = {};
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t matmul, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
  const Matmul product = {.how = *matmul,
                          .a_layout = *a_layout,
                          .b_layout = *b_layout,
                          .d_layout = *d_layout,
                          .alpha = *static_cast<const float*>(alpha),
                          .beta = *static_cast<const float*>(beta),
                          .a = a,
                          .b = b,
                          .c = c,
                          .d = d};
  product.Check();
  cuda_emulator::Enqueue(stream, [product] { product.Run(); });
  return CUBLAS_STATUS_SUCCESS;
}
