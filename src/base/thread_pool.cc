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

// Waits until `value` is no longer `old`; returns what it is then.
template <typename T>
T SpinThenWait(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    Pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
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
  inside_.store(0, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  Work(0);
  uint32_t inside = inside_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
  while (inside != kClosed) inside = SpinThenWait(inside_, inside);
}

void ThreadPool::Work(int worker) {
  for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < n_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    function_(context_, i, worker);
  }
}

void ThreadPool::Join(int worker) {
  uint32_t inside = inside_.load(std::memory_order_relaxed);
  do {
    if ((inside & kClosed) != 0) return;
  } while (!inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acquire,
                                          std::memory_order_relaxed));
  Work(worker);
  if (inside_.fetch_sub(1, std::memory_order_acq_rel) == (kClosed | 1)) inside_.notify_one();
}

void ThreadPool::WorkerLoop(int worker) {
  for (uint32_t seen = 0;;) {
    seen = SpinThenWait(epoch_, seen);  // who was away for long has missed some
    if (stop_) return;
    Join(worker);
  }
}

}  // namespace kvcake
