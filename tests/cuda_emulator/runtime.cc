// The first stream, that of the kernels, holds what is enqueued until somebody waits for it: as
// late as CUDA may run it. What is enqueued on others runs as late, or at once. Kernels that may
// start early all begin before the first of a row of them runs: what they copy before they wait for
// each other may not change meanwhile.
#include <sys/mman.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda.h"
#include "cuda_runtime.h"

struct Operation {
  std::function<void()> run;
  std::function<std::vector<cuda_emulator::EarlyRead>()> begin;  // where it may start early
  uint64_t number = 0;                                           // of the stream's operations
  std::optional<std::vector<cuda_emulator::EarlyRead>> reads = std::nullopt;  // once it has begun
};

struct CUstream_st {
  std::deque<Operation> queue;
  uint64_t enqueued = 0;
  CUgraph_st* capture = nullptr;
};
struct CUevent_st {
  CUstream_st* stream = nullptr;
  uint64_t number = 0;  // of the last operation before it
};
struct CUgraph_st {
  std::deque<Operation> operations;
};
struct CUgraphExec_st {
  std::deque<Operation> operations;
};

namespace {

using cuda_emulator::AnswerTo;
using cuda_emulator::Die;

constexpr size_t kPage = 4096;

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

std::byte* PageOf(std::byte* memory) {
  return memory - reinterpret_cast<uintptr_t>(memory) % kPage;
}

struct Device {
  std::recursive_mutex mutex;  // operations may come back, as graphs do
  // Guarded by mutex.
  std::map<std::byte*, size_t> memory;  // allocations and their sizes
  std::set<CUstream_st*> streams;
  CUstream_st* kernels = nullptr;  // the first stream
  std::mt19937 random{1};
  size_t bytes = size_t{8} << 30, used = 0;
};

Device& TheDevice() {
  static auto* const device = new Device();
  return *device;
}

using Lock = std::lock_guard<std::recursive_mutex>;

// The host may touch the device's memory while this lives: operations do. Otherwise it faults, as
// on a machine that has a device.
class Touch {
 public:
  Touch() {
    if (touches_++ == 0) Protect(PROT_READ | PROT_WRITE);
  }
  ~Touch() {
    if (--touches_ == 0) Protect(PROT_NONE);
  }
  Touch(const Touch&) = delete;
  Touch& operator=(const Touch&) = delete;

 private:
  static void Protect(int protection) {
    for (const auto& [first, size] : TheDevice().memory) {
      mprotect(PageOf(first), RoundUp(size, kPage), protection);
    }
  }
  static inline int touches_ = 0;  // guarded by the device's mutex
};

// The first of some operations, and the beginnings of those that may start before it has ended.
void RunFirst(std::deque<Operation>* operations) {
  for (Operation& operation : *operations) {
    if (!operation.begin) break;
    if (!operation.reads) operation.reads = operation.begin();
  }
  const Operation first = std::move(operations->front());
  operations->pop_front();
  if (first.reads) cuda_emulator::CheckEarlyReads(*first.reads);
  first.run();
}

// All of a stream's operations up to that number.
void Run(CUstream_st* stream, uint64_t number = UINT64_MAX) {
  if (stream->capture != nullptr) Die("a stream is waited for while it is captured");
  if (stream->queue.empty() || stream->queue.front().number > number) return;
  const Touch touch;
  while (!stream->queue.empty() && stream->queue.front().number <= number) {
    RunFirst(&stream->queue);
  }
}

void RunAll() {
  for (CUstream_st* stream : TheDevice().streams) Run(stream);
}

void RefuseInCapture(const char* why) {
  for (const CUstream_st* stream : TheDevice().streams) {
    if (stream->capture != nullptr) Die(why);
  }
}

bool IsOfDevice(const void* memory, size_t bytes) {
  const auto* const at = static_cast<const std::byte*>(memory);
  for (const auto& [first, size] : TheDevice().memory) {
    if (at < first || at >= first + size) continue;
    if (at + bytes > first + size) Die("a copy goes beyond an allocation");
    return true;
  }
  return false;
}

}  // namespace

namespace cuda_emulator {

constexpr size_t kSharedMax = 227 << 10;     // of a block on an H100
constexpr size_t kSharedUnasked = 48 << 10;  // what each kernel may have without asking

std::map<const void*, size_t>& SharedOfKernels() {
  static auto* const bytes = new std::map<const void*, size_t>();
  return *bytes;
}

cudaError_t AllowShared(const void* kernel, int bytes) {
  const Lock lock(TheDevice().mutex);
  if (bytes < 0 || static_cast<size_t>(bytes) > kSharedMax) return cudaErrorInvalidValue;
  SharedOfKernels()[kernel] = bytes;
  return cudaSuccess;
}

void Enqueue(cudaStream_t stream, std::function<void()> run,
             std::function<std::vector<EarlyRead>()> begin) {
  Operation operation = {.run = std::move(run), .begin = std::move(begin)};
  const Lock lock(TheDevice().mutex);
  if (stream == nullptr) Die("the default stream is not for kvcake: it waits for all others");
  if (stream->capture != nullptr) {
    stream->capture->operations.push_back(std::move(operation));
  } else {
    operation.number = ++stream->enqueued;
    stream->queue.push_back(std::move(operation));
    if (stream != TheDevice().kernels && TheDevice().random() % 2 == 0) Run(stream);
  }
}

cudaError_t AnswerTo(const char* call) {
  const char* const fault = std::getenv("CUDA_EMULATOR_FAULT");
  return fault != nullptr && std::string_view(fault) == call ? cudaErrorDevicesUnavailable
                                                             : cudaSuccess;
}

void CheckLaunch(const cudaLaunchConfig_t& config, const void* kernel) {
  constexpr unsigned kGridMax = 65535;  // but for x
  const dim3& grid = config.gridDim;
  if (grid.x < 1 || grid.y < 1 || grid.y > kGridMax || grid.z != 1) Die("no such grid");
  if (config.blockDim.y != 1 || config.blockDim.z != 1) Die("blocks are lines here");
  const Lock lock(TheDevice().mutex);
  const auto asked = SharedOfKernels().find(kernel);
  if (config.dynamicSmemBytes >
      (asked == SharedOfKernels().end() ? kSharedUnasked : asked->second)) {
    Die("a block has more shared memory than its kernel has asked for");
  }
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const auto& [id, value] = config.attrs[i];
    if (id == cudaLaunchAttributeCooperative && value.cooperative != 0 &&
        grid.x > kMultiprocessors) {
      Die("a cooperative grid has more blocks than there is room for");
    }
  }
}

}  // namespace cuda_emulator

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation     ? "out of memory"
         : error == cudaErrorInvalidValue       ? "invalid value"
         : error == cudaErrorDevicesUnavailable ? "unavailable"
                                                : "no error";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaDriverGetVersion(int* version) {  // 0 where there is no driver
  *version = AnswerTo("cudaDriverGetVersion") == cudaSuccess ? CUDART_VERSION : 0;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return AnswerTo("cudaGetDeviceCount");
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {.name = "emulated CUDA device",
                 .major = 9,
                 .minor = 0,
                 .multiProcessorCount = cuda_emulator::kMultiprocessors,
                 .totalGlobalMem = TheDevice().bytes,
                 .sharedMemPerBlockOptin = cuda_emulator::kSharedMax,
                 .sharedMemPerMultiprocessor = 228 << 10};
  return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return AnswerTo("cudaSetDevice"); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const Lock lock(TheDevice().mutex);
  *total = TheDevice().bytes;
  *free = *total - TheDevice().used;
  return cudaSuccess;
}

// Between pages that nobody may touch, as near to the one behind it as CUDA's alignment lets it be,
// and full of ones, which are no numbers.
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  constexpr size_t kAlignment = 256, kFilledMax = 64 << 20;
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  RefuseInCapture("memory is allocated while a stream is captured");
  bytes = RoundUp(bytes, kAlignment);
  if (device.used + bytes > device.bytes) return cudaErrorMemoryAllocation;
  const size_t room = RoundUp(bytes, kPage);
  void* const pages = mmap(nullptr, room + 2 * kPage, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return cudaErrorMemoryAllocation;
  auto* const begin = static_cast<std::byte*>(pages) + kPage;
  mprotect(begin, room, PROT_READ | PROT_WRITE);
  madvise(begin, room, MADV_HUGEPAGE);  // fewer pages to protect
  if (room <= kFilledMax) std::memset(begin, 0xff, room);
  mprotect(begin, room, PROT_NONE);
  auto* const first = begin + (room - bytes);
  device.memory[first] = bytes;
  device.used += bytes;
  *memory = first;
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  RefuseInCapture("memory is freed while a stream is captured");
  RunAll();
  const auto at = device.memory.find(static_cast<std::byte*>(memory));
  if (at == device.memory.end()) Die("what is freed was not allocated");
  munmap(PageOf(at->first) - kPage, RoundUp(at->second, kPage) + 2 * kPage);
  device.used -= at->second;
  device.memory.erase(at);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void*, size_t, unsigned) { return AnswerTo("cudaHostRegister"); }

cudaError_t cudaHostUnregister(void*) {
  const Lock lock(TheDevice().mutex);
  RunAll();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (const cudaError_t error = AnswerTo("cudaStreamCreateWithFlags")) return error;
  const Lock lock(TheDevice().mutex);
  *stream = new CUstream_st();
  TheDevice().streams.insert(*stream);
  if (TheDevice().kernels == nullptr) TheDevice().kernels = *stream;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(TheDevice().mutex);
  Run(stream);
  TheDevice().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(TheDevice().mutex);
  Run(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(TheDevice().mutex);
  cuda_emulator::Enqueue(stream, [of = *event] { Run(of.stream, of.number); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(TheDevice().mutex);
  *event = {.stream = stream, .number = stream->enqueued};
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(TheDevice().mutex);
  if (event->stream != nullptr) Run(event->stream, event->number);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Lock lock(TheDevice().mutex);
  if (bytes == 0) return cudaSuccess;
  if (IsOfDevice(to, bytes) != (kind != cudaMemcpyDeviceToHost) ||
      IsOfDevice(from, bytes) != (kind != cudaMemcpyHostToDevice)) {
    Die("a copy is not of the kind that it says");
  }
  cuda_emulator::Enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  cuda_emulator::Enqueue(stream, [=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (const cudaError_t error = AnswerTo("cudaStreamBeginCapture")) return error;
  const Lock lock(TheDevice().mutex);
  stream->capture = new CUgraph_st();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(TheDevice().mutex);
  *graph = std::exchange(stream->capture, nullptr);
  if (const cudaError_t error = AnswerTo("cudaStreamEndCapture")) {
    delete std::exchange(*graph, nullptr);
    return error;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t error = AnswerTo("cudaGraphInstantiate")) return error;
  *exec = new CUgraphExec_st{graph->operations};
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return AnswerTo("cudaGraphUpload"); }

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  cuda_emulator::Enqueue(stream, [operations = exec->operations] {
    std::deque<Operation> left = operations;
    while (!left.empty()) RunFirst(&left);
  });
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (std::strcmp(name, "cuTensorMapEncodeTiled") != 0) Die("the driver has no such function here");
  *function = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* data,
                                const cuuint64_t* size, const cuuint64_t* stride,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  constexpr uint64_t kSizeMax = uint64_t{1} << 32, kStrideMax = uint64_t{1} << 40;
  constexpr uint32_t kBoxMax = 256, kSwizzled = 64;  // elements, of 128 bytes
  if (rank != CUtensorMap::kRank || reinterpret_cast<uintptr_t>(data) % 16 != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *map = {.data = data};
  for (int i = 0; i < CUtensorMap::kRank; ++i) {
    map->size[i] = size[i];
    map->stride[i] = i == 0 ? sizeof(uint16_t) : stride[i - 1];
    map->box[i] = box[i];
    if (size[i] < 1 || size[i] > kSizeMax || box[i] < 1 || box[i] > kBoxMax || steps[i] != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (i > 0 && (map->stride[i] % 16 != 0 || map->stride[i] >= kStrideMax)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return box[0] > kSwizzled ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
