#include "ops/cuda_device.h"

#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "base/check.h"
#include "ops/cuda_check.h"
#include "ops/cuda_support.h"

namespace kvcake {
namespace {

__global__ void ProbeKernel() {}

Error Unusable(const std::string& why) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string error = "no CUDA device can be used: " + why;
  if (visible != nullptr) error += fmt::format(" (CUDA_VISIBLE_DEVICES is \"{}\")", visible);
  return {ErrorCode::kUnsupported, std::move(error)};
}

// For calls that fail where others have the device, or its memory, for themselves.
Status Usable(cudaError_t error) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // forgets it
  return tl::unexpected(Unusable(cudaGetErrorString(error)));
}

}  // namespace

Result<CudaDevice*> CudaDevice::Get() {
  static const Result<CudaDevice*> device = Open();
  return device;
}

Result<CudaDevice*> CudaDevice::Open() {
  int driver = 0, count = 0;
  RETURN_IF_ERROR(Usable(cudaDriverGetVersion(&driver)));
  RETURN_IF_ERROR(CheckCudaDriver(driver, CUDART_VERSION));
  RETURN_IF_ERROR(Usable(cudaGetDeviceCount(&count)));
  if (count == 0) return tl::unexpected(Unusable("there is none; see --cuda-device"));
  cudaDeviceProp properties;
  RETURN_IF_ERROR(Usable(cudaGetDeviceProperties(&properties, 0)));
  const int capability = properties.major * 10 + properties.minor;
  RETURN_IF_ERROR(CheckCudaCard(properties.name, capability, driver));
  // Waiting threads sleep: the cores have other work.
  RETURN_IF_ERROR(Usable(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync)));
  RETURN_IF_ERROR(Usable(cudaSetDevice(0)));
  cudaFuncAttributes probe;
  if (const cudaError_t error = cudaFuncGetAttributes(&probe, ProbeKernel); error != cudaSuccess) {
    cudaGetLastError();
    return Fail(ErrorCode::kUnsupported,
                "{} has compute capability {}.{}, for which this kvcake has no kernels: {}",
                properties.name, properties.major, properties.minor, cudaGetErrorString(error));
  }
  auto device = std::unique_ptr<CudaDevice>(new CudaDevice());
  device->name_ = properties.name;
  device->capability_ = capability;
  device->multiprocessors_ = properties.multiProcessorCount;
  device->block_shared_bytes_ = static_cast<int>(properties.sharedMemPerBlockOptin);
  device->multiprocessor_shared_bytes_ = static_cast<int>(properties.sharedMemPerMultiprocessor);
  device->memory_bytes_ = properties.totalGlobalMem;
  RETURN_IF_ERROR(Usable(cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking)));
  ASSIGN_OR_RETURN(device->scratch_, device->Allocate(kScratchBytes));
  ASSIGN_OR_RETURN(std::byte * arrived, device->Allocate(sizeof(unsigned)));
  device->Zero(arrived, sizeof(unsigned));
  device->arrived_ = reinterpret_cast<unsigned*>(arrived);
  return device.release();  // for as long as the process: static objects may hold its memory
}

uint64_t CudaDevice::free_bytes() const {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

Result<std::byte*> CudaDevice::Allocate(uint64_t bytes) {
  void* memory = nullptr;
  if (const cudaError_t error = cudaMalloc(&memory, bytes); error != cudaSuccess) {
    cudaGetLastError();  // forgets it
    return Fail(ErrorCode::kResourceExhausted, "{} has {} of {} bytes left, not {}: {}", name_,
                free_bytes(), memory_bytes_, bytes, cudaGetErrorString(error));
  }
  return static_cast<std::byte*>(memory);
}

Result<std::byte*> CudaDevice::AllocatePinned(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) madvise(memory, bytes, MADV_HUGEPAGE);  // fewer pages to lock
  const cudaError_t error = memory == MAP_FAILED
                                ? cudaErrorMemoryAllocation
                                : cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
  if (error == cudaSuccess) return static_cast<std::byte*>(memory);
  cudaGetLastError();
  if (memory != MAP_FAILED) munmap(memory, bytes);
  return Fail(ErrorCode::kResourceExhausted, "the host has no {} bytes to page-lock: {}", bytes,
              cudaGetErrorString(error));
}

void CudaDevice::Free(std::byte* memory) {
  EnqueueGathered();  // it may use the memory
  CUDA_CHECK(cudaFree(memory));
}

void CudaDevice::FreePinned(std::byte* memory, uint64_t bytes) {
  CUDA_CHECK(cudaHostUnregister(memory));
  munmap(memory, bytes);
}

void CudaDevice::CopyToDevice(void* to, const void* from, uint64_t bytes) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream()));
}

void CudaDevice::CopyToHost(void* to, const void* from, uint64_t bytes) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream()));
}

void CudaDevice::Zero(void* memory, uint64_t bytes) {
  CUDA_CHECK(cudaMemsetAsync(memory, 0, bytes, stream()));
}

void CudaDevice::Upload(void* to, const void* from, uint64_t bytes) {
  CopyToDevice(to, from, bytes);
  Wait();
}

void CudaDevice::Wait() { CUDA_CHECK(cudaStreamSynchronize(stream())); }

}  // namespace kvcake
