// Products in bf16 with f32 sums: of few rows by a kernel of our own (matmul_cuda_few.h), of more
// by cuBLASLt. The order of a sum follows from the number of rows, too: a row's result is the same
// up to rounding only.
#include <cublasLt.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "ops/buffer.h"
#include "ops/cuda_check.h"
#include "ops/cuda_kernels.h"
#include "ops/matmul_cuda_few.h"

namespace kvcake::cuda {
namespace {

#define CUBLAS_CHECK(call)                                                                    \
  do {                                                                                        \
    if (const cublasStatus_t status = (call); status != CUBLAS_STATUS_SUCCESS) [[unlikely]] { \
      std::fprintf(stderr, "%s:%d: cuBLASLt: %s: %s\n", __FILE__, __LINE__, #call,            \
                   cublasLtGetStatusString(status));                                          \
      std::abort();                                                                           \
    }                                                                                         \
  } while (false)

// What decides which kernel is best. In cuBLASLt's terms, where matrices are column after column:
// out[n][rows] = w[k][n]^T x a[k][rows].
struct Problem {
  int64_t n = 0, k = 0, rows = 0;
  int64_t a_stride = 0, out_stride = 0;
  bool bias = false, add = false;
  cudaDataType_t out_type = CUDA_R_32F;

  auto operator<=>(const Problem&) const = default;
};

class Product {
 public:
  explicit Product(const Problem& problem) : problem_(problem) {
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    Set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (problem.bias) Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&w_, CUDA_R_16BF, problem.k, problem.n, problem.k));
    CUBLAS_CHECK(
        cublasLtMatrixLayoutCreate(&a_, CUDA_R_16BF, problem.k, problem.rows, problem.a_stride));
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&out_, problem.out_type, problem.n, problem.rows,
                                            problem.out_stride));
  }
  ~Product() {
    cublasLtMatrixLayoutDestroy(out_);
    cublasLtMatrixLayoutDestroy(a_);
    cublasLtMatrixLayoutDestroy(w_);
    cublasLtMatmulDescDestroy(operation_);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  void Choose(cublasLtHandle_t blas, uint64_t workspace_bytes) {
    cublasLtMatmulPreference_t preference;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference,
                                                      CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &workspace_bytes, sizeof(workspace_bytes)));
    // The parts of a sum stay f32, too.
    const uint32_t parts = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (problem_.out_type != CUDA_R_32F) {
      CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
          preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &parts, sizeof(parts)));
    }
    int found = 0;
    CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(blas, operation_, w_, a_, out_, out_, preference, 1,
                                                &choice_, &found));
    CHECK(found == 1);
    cublasLtMatmulPreferenceDestroy(preference);
  }

  void Run(cublasLtHandle_t blas, CudaDevice& device, const std::byte* a, const PackedMatrix& w,
           void* out, void* workspace) {
    const float alpha = 1, beta = problem_.add ? 1 : 0;
    if (problem_.bias) Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, w.DeviceBias());
    CUBLAS_CHECK(cublasLtMatmul(blas, operation_, &alpha, w.DeviceRows(), w_, a, a_, &beta, out,
                                out_, out, out_, &choice_.algo, workspace, choice_.workspaceSize,
                                device.stream()));
  }

 private:
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)));
  }

  const Problem problem_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, a_ = nullptr, out_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_ = {};
};

// The kernels chosen so far, for the shapes that a model and its batches have.
class Products {
 public:
  explicit Products(CudaDevice& device) : device_(device) {
    CUBLAS_CHECK(cublasLtCreate(&blas_));
  }

  void Run(const Problem& problem, const std::byte* a, const PackedMatrix& w, void* out) {
    if (chosen_.size() >= kChosenMax && !chosen_.contains(problem)) chosen_.clear();
    const auto [it, added] = chosen_.try_emplace(problem, problem);
    if (added) it->second.Choose(blas_, kWorkspaceBytes);
    it->second.Run(blas_, device_, a, w, out, workspace_.data());
  }

 private:
  static constexpr uint64_t kWorkspaceBytes = 32 << 20;  // NVIDIA's advice for Hopper
  static constexpr size_t kChosenMax = 4096;

  CudaDevice& device_;
  cublasLtHandle_t blas_ = nullptr;
  const Buffer workspace_{kWorkspaceBytes, Memory::kDevice};
  std::map<Problem, Product> chosen_;
};

Products& ProductsOf(CudaDevice& device) {
  static auto* const products = new Products(device);  // there is one device
  return *products;
}

Problem ProblemOf(const Activations& a, const PackedMatrix& w, int64_t out_stride) {
  CHECK(a.k == w.k() && w.format() == WeightFormat::kBf16);
  return {.n = w.n(), .k = a.k, .rows = a.rows, .a_stride = a.stride, .out_stride = out_stride};
}

// Rows [first, first + rows) of a by w, to the scratch, without gaps. They are rounded to bf16, as
// by Hugging Face's modules of that type: half as much to write and to read. Without the bias,
// which cuBLASLt would take in bf16 only.
const uint16_t* ToScratch(CudaDevice& device, const Activations& a, const PackedMatrix& w,
                          int64_t first, int64_t rows) {
  Problem problem = ProblemOf(a, w, w.n());
  problem.rows = rows;
  problem.out_type = CUDA_R_16BF;
  ProductsOf(device).Run(problem, a.data + first * a.stride * 2, w, device.scratch());
  return reinterpret_cast<const uint16_t*>(device.scratch());
}

// As many rows at once as the scratch holds.
template <typename Use>
void ForRowsOfScratch(CudaDevice& device, const Activations& a, const PackedMatrix& w,
                      const Activations& out, Use use) {
  constexpr int64_t kAligned = 8;  // rows after which a's are where cuBLASLt takes them to be
  const int64_t step = CudaDevice::kScratchBytes /
                       (w.n() * static_cast<int64_t>(sizeof(uint16_t))) / kAligned * kAligned;
  CHECK(step > 0);
  for (int64_t first = 0; first < a.rows; first += step) {
    const int64_t rows = std::min(step, a.rows - first);
    Activations some = out;
    some.data += first * out.stride * 2;
    some.rows = rows;
    use(ToScratch(device, a, w, first, rows), some);
  }
}

// The rows, once they are there.
Activations Normalized(CudaDevice& device, Activations rows) {
  if (rows.unnormalized == nullptr) return rows;
  const NormWeights norm{.weight = rows.norm_weight, .eps = rows.norm_eps};
  RmsNorm(device, std::exchange(rows.unnormalized, nullptr), norm, rows);
  return rows;
}

// By MultiplyFewRows; else false, and the rows are there.
bool ByFewRows(CudaDevice& device, const PackedMatrix& w, const ProductOut& out, Activations* a) {
  if (!ProductsNormalize(device, *a)) *a = Normalized(device, *a);
  if (MultiplyFewRows(device, *a, w, out)) return true;
  *a = Normalized(device, *a);
  return false;
}

void ByCublas(CudaDevice& device, const Activations& a, const PackedMatrix& w, float* out,
              int64_t stride, bool add) {
  Problem problem = ProblemOf(a, w, stride);
  problem.bias = w.DeviceBias() != nullptr;
  problem.add = add;
  ProductsOf(device).Run(problem, a.data, w, out);
}

}  // namespace

void MatMul(CudaDevice& device, const Activations& rows, const PackedMatrix& w, float* out,
            int64_t stride, bool add) {
  if (rows.rows == 0) return;
  CHECK(rows.unnormalized == nullptr || rows.unnormalized != out);
  Activations a = rows;
  const auto kind = add ? ProductOut::Kind::kAdd : ProductOut::Kind::kSet;
  if (!ByFewRows(device, w, {kind, out, stride}, &a)) ByCublas(device, a, w, out, stride, add);
}

void MatMulQkv(CudaDevice& device, const Activations& rows, const PackedMatrix& w,
               const QkvShape& shape, float* qkv, const float* table, std::span<const KvSlot> slots,
               const KvStride& stride) {
  if (rows.rows == 0) return;
  const ProductOut out = {.kind = ProductOut::Kind::kQkv,
                          .data = qkv,
                          .stride = w.n(),
                          .shape = shape,
                          .rope = table,
                          .slots = slots.data(),
                          .kv_stride = stride,
                          .query_scale = QueryScale(shape)};
  Activations a = rows;
  if (ByFewRows(device, w, out, &a)) return;
  ByCublas(device, a, w, qkv, w.n(), /*add=*/false);
  RopeAndStoreKv(device, shape, qkv, table, slots, stride);
}

void MatMulSwiGlu(CudaDevice& device, const Activations& rows, const PackedMatrix& w,
                  const Activations& out) {
  Activations a = rows;
  if (ByFewRows(device, w, {ProductOut::Kind::kSwiGlu, out.data, out.stride}, &a)) return;
  ForRowsOfScratch(device, a, w, out, [&](const uint16_t* sums, const Activations& to) {
    SwiGlu(device, sums, w.DeviceBias(), to);
  });
}

void MatMulGelu(CudaDevice& device, const Activations& rows, const PackedMatrix& w,
                const Activations& out) {
  Activations a = rows;
  if (ByFewRows(device, w, {ProductOut::Kind::kGelu, out.data, out.stride}, &a)) return;
  ForRowsOfScratch(device, a, w, out, [&](const uint16_t* sums, const Activations& to) {
    Gelu(device, sums, w.DeviceBias(), to);
  });
}

}  // namespace kvcake::cuda
