// The threads that parse and tokenize requests, so that the one that moves bytes never does. Large
// pieces of work never hold small ones back: one thread takes nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace kvcake {

class PreparePool {
 public:
  struct Options {
    int threads = 1;                // for work of any size, beside the one for what is small
    size_t small_bytes = 64 << 10;  // work on fewer bytes than these is small
    size_t queue_max = 1024;        // pieces of work of each kind that wait or run
    std::vector<int> cpus = {};     // where the threads may run; empty: wherever they like
  };
  // Pieces that wait or run.
  struct Load {
    size_t small = 0;
    size_t large = 0;
  };

  explicit PreparePool(Options options);
  // Does what waits first.
  ~PreparePool();
  PreparePool(const PreparePool&) = delete;
  PreparePool& operator=(const PreparePool&) = delete;

  // Any thread. Has `work`, on so many bytes, done by one of the threads; in order of arrival among
  // those of its kind. False: too many wait already. `work` throws nothing.
  [[nodiscard]] bool Post(size_t bytes, std::function<void()> work) EXCLUDES(mutex_);
  Load load() const EXCLUDES(mutex_);

 private:
  enum Kind { kSmall, kLarge };

  void Run(bool only_small) EXCLUDES(mutex_);

  const Options options_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::array<std::deque<std::function<void()>>, 2> waiting_ GUARDED_BY(mutex_);  // by Kind
  std::array<size_t, 2> load_ GUARDED_BY(mutex_) = {};                           // by Kind
  bool stop_ GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace kvcake
