#include <memory>
#include <string>

#include "ops/cuda_check.h"
#include "ops/cuda_kernels.h"

namespace kvcake::cuda {
namespace {

class CudaGraph : public StepGraph {
 public:
  explicit CudaGraph(CudaDevice& device) : device_(device) {}
  ~CudaGraph() override {
    if (graph_ != nullptr) CUDA_CHECK(cudaGraphExecDestroy(graph_));
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // All that the device will need is there when this returns, so that no launch runs out of memory.
  cudaError_t Instantiate(cudaGraph_t captured) {
    const cudaError_t error = cudaGraphInstantiate(&graph_, captured, 0);
    return error == cudaSuccess ? cudaGraphUpload(graph_, device_.stream()) : error;
  }
  void Launch() override { CUDA_CHECK(cudaGraphLaunch(graph_, device_.stream())); }

 private:
  CudaDevice& device_;
  cudaGraphExec_t graph_ = nullptr;
};

Error Failed(const char* what, cudaError_t error) {
  cudaGetLastError();  // forgets it
  return {ErrorCode::kUnsupported, std::string(what) + ": " + cudaGetErrorString(error)};
}

}  // namespace

Result<std::unique_ptr<StepGraph>> Capture(CudaDevice& device, const StepGraphs::Enqueue& enqueue) {
  // Captures this thread alone: others copy pages meanwhile, on streams of their own.
  cudaError_t error = cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeThreadLocal);
  if (error != cudaSuccess) return tl::unexpected(Failed("cudaStreamBeginCapture", error));
  enqueue();
  cudaGraph_t captured = nullptr;
  error = cudaStreamEndCapture(device.stream(), &captured);
  if (error != cudaSuccess) return tl::unexpected(Failed("cudaStreamEndCapture", error));
  auto graph = std::make_unique<CudaGraph>(device);
  error = graph->Instantiate(captured);
  CUDA_CHECK(cudaGraphDestroy(captured));
  if (error != cudaSuccess) return tl::unexpected(Failed("cudaGraphInstantiate", error));
  return graph;
}

}  // namespace kvcake::cuda
