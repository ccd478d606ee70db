#include "base/thread_pool.h"

#include "base/check.h"
#include "base/cpu.h"

namespace kvcake {
namespace {

// About 20 us: long enough to span the gap between two operations of a forward pass, short enough
// that an idle pool leaves the core to I/O.
constexpr int kSpins = 2000;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns when `value` is no longer `old`.
template <typename T>
void SpinThenWait(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    Pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads, std::span<const int> cpus) {
  CHECK(threads >= 1 && (cpus.empty() || cpus.size() >= static_cast<size_t>(threads)));
  try {
    for (int worker = 1; worker < threads; ++worker) {
      const int cpu = cpus.empty() ? -1 : cpus[worker];
      threads_.emplace_back([this, worker, cpu] {
        // Elsewhere it works as well, only perhaps slower.
        if (cpu >= 0) (void)RestrictToCpus(std::span(&cpu, 1));
        WorkerLoop(worker);
      });
    }
  } catch (...) {  // no memory, or no thread, is left
    JoinThreads();
    throw;
  }
}

ThreadPool::~ThreadPool() { JoinThreads(); }

void ThreadPool::JoinThreads() {
  stop_ = true;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(int64_t n, Function function, void* context) {
  if (n <= 1 || threads_.empty()) {
    for (int64_t i = 0; i < n; ++i) function(context, i, 0);
    return;
  }
  function_ = function;
  context_ = context;
  n_ = n;
  next_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  Work(0);
  for (int left = running_.load(std::memory_order_acquire); left != 0;
       left = running_.load(std::memory_order_acquire)) {
    SpinThenWait(running_, left);
  }
}

void ThreadPool::Work(int worker) {
  for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < n_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    function_(context_, i, worker);
  }
}

void ThreadPool::WorkerLoop(int worker) {
  uint32_t seen = 0;
  while (true) {
    SpinThenWait(epoch_, seen);
    ++seen;  // the caller waits for every worker, so an epoch is never skipped
    if (stop_) return;
    Work(worker);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace kvcake
