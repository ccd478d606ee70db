// The one compute pool. Matrix products, attention and elementwise work all run on it; nothing
// else in the process computes, so no second pool spins beside it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

namespace kvcake {

// Workers sleep in the kernel between calls after a short spin. One ParallelFor at a time: calls
// come from one thread (the engine thread), and the body must not call back into the pool.
class ThreadPool {
 public:
  // `threads` workers including the caller, at least 1. With `cpus`, at least as many, worker i
  // runs on cpus[i] only; the caller, worker 0, is not moved.
  explicit ThreadPool(int threads, std::span<const int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(index, worker) for every index in [0, n), worker in [0, size()), in any order, and
  // returns when all are done. Indices are handed out one by one, so uneven work balances, and a
  // worker that gets no core, as beside other programs, is waited for only once it has begun.
  template <typename Body>
  void ParallelFor(int64_t n, Body&& body) {
    Run(
        n,
        [](void* context, int64_t index, int worker) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(index, worker);
        },
        &body);
  }

 private:
  using Function = void (*)(void* context, int64_t index, int worker);
  static constexpr uint32_t kClosed = 1u << 31;

  void JoinThreads();
  void Run(int64_t n, Function function, void* context);
  void Work(int worker);
  // Works on the call that is open now, if one is.
  void Join(int worker);
  void WorkerLoop(int worker);

  std::vector<std::thread> threads_;
  // The current call; written by the caller while it is closed and nobody is inside.
  Function function_ = nullptr;
  void* context_ = nullptr;
  int64_t n_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<uint32_t> epoch_{0};
  std::atomic<uint32_t> inside_{kClosed};  // workers that work on the call; kClosed: none may begin
  std::atomic<bool> stop_{false};
};

}  // namespace kvcake
