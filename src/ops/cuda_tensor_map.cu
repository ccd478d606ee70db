#include "ops/cuda_tensor_map.h"

#include "base/check.h"
#include "ops/cuda_check.h"

namespace kvcake::cuda {
namespace {

// The driver's function, which programs are not linked to: they start where there is no driver.
decltype(&cuTensorMapEncodeTiled) Encoder() {
  constexpr char kName[] = "cuTensorMapEncodeTiled";
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
  constexpr unsigned kSince = 12000;
  CUDA_CHECK(cudaGetDriverEntryPointByVersion(kName, &encode, kSince, cudaEnableDefault, &result));
#else
  CUDA_CHECK(cudaGetDriverEntryPoint(kName, &encode, cudaEnableDefault, &result));
#endif
  CHECK(result == cudaDriverEntryPointSuccess);
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode);
}

}  // namespace

TensorMap MapTensor(const TensorShape& shape) {
  static const auto encode = Encoder();
  constexpr std::array<uint32_t, kTensorRank> kSteps = {1, 1, 1, 1, 1};
  TensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kTensorRank, const_cast<void*>(shape.data),
             shape.size.data(), shape.stride.data() + 1, shape.box.data(), kSteps.data(),
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS);
  return map;
}

}  // namespace kvcake::cuda
