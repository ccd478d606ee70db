#include "ops/cuda_page_copier.h"

#include <deque>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "ops/cuda_check.h"
#include "ops/cuda_device.h"

namespace kvcake {
namespace {

// Copies one way, in order. Copies are enqueued by whoever asks; the thread sleeps until the oldest
// has been done (CUDA's own callbacks may not enqueue anything, and what `done` does will).
class CopyLane {
 public:
  explicit CopyLane(cudaMemcpyKind kind) : kind_(kind) {
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    thread_ = std::thread([this] { Loop(); });
  }
  ~CopyLane() {
    {
      MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.NotifyAll();
    thread_.join();
    for (cudaEvent_t event : events_) CUDA_CHECK(cudaEventDestroy(event));
    CUDA_CHECK(cudaStreamDestroy(stream_));
  }
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  void Copy(std::span<std::byte> to, std::span<const std::byte> from, std::function<void()> done) {
    CHECK(to.size() == from.size());
    MutexLock lock(mutex_);  // a copy's event follows it at once
    CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), to.size(), kind_, stream_));
    RecordLocked(stream_, std::move(done));
  }

  // What is copied from now on waits for what `operations` has now.
  void Follow(cudaStream_t operations, std::function<void()> reached) {
    MutexLock lock(mutex_);
    const cudaEvent_t event = RecordLocked(operations, std::move(reached));
    CUDA_CHECK(cudaStreamWaitEvent(stream_, event));
  }

 private:
  struct Pending {
    cudaEvent_t event;
    std::function<void()> done;
  };

  cudaEvent_t RecordLocked(cudaStream_t stream, std::function<void()> done) REQUIRES(mutex_) {
    const cudaEvent_t event = TakeEvent();
    CUDA_CHECK(cudaEventRecord(event, stream));
    pending_.push_back({event, std::move(done)});
    changed_.NotifyAll();  // under the lock: `done` may be the end of this
    return event;
  }

  cudaEvent_t TakeEvent() REQUIRES(mutex_) {
    cudaEvent_t event;
    if (events_.empty()) {
      CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
      return event;
    }
    event = events_.back();
    events_.pop_back();
    return event;
  }

  void Loop() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (true) {
      while (!stop_ && pending_.empty()) changed_.Wait(mutex_);
      if (pending_.empty()) return;
      Pending oldest = std::move(pending_.front());
      pending_.pop_front();
      lock.Unlock();
      CUDA_CHECK(cudaEventSynchronize(oldest.event));
      oldest.done();
      oldest.done = nullptr;  // what it holds goes outside the lock
      lock.Lock();
      events_.push_back(oldest.event);
    }
  }

  const cudaMemcpyKind kind_;
  cudaStream_t stream_ = nullptr;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Pending> pending_ GUARDED_BY(mutex_);
  std::vector<cudaEvent_t> events_ GUARDED_BY(mutex_);  // as many as were ever in flight
  bool stop_ GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

class CudaPageCopier : public PageCopier {
 public:
  void ToPage(std::span<std::byte> page, std::span<const std::byte> staging,
              std::function<void()> done) override {
    to_pages_.Copy(page, staging, std::move(done));
  }
  void FromPage(std::span<std::byte> staging, std::span<const std::byte> page,
                std::function<void()> done) override {
    from_pages_.Copy(staging, page, std::move(done));
  }
  void AfterOperations(std::function<void()> reached) override {
    from_pages_.Follow(device_.stream(), std::move(reached));
  }

 private:
  CudaDevice& device_ = **CudaDevice::Get();
  CopyLane to_pages_{cudaMemcpyHostToDevice};
  CopyLane from_pages_{cudaMemcpyDeviceToHost};
};

}  // namespace

std::unique_ptr<PageCopier> NewCudaPageCopier() { return std::make_unique<CudaPageCopier>(); }

}  // namespace kvcake
