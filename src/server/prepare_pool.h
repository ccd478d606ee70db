// The threads that parse and tokenize requests, so that the one that moves bytes never does. Large
// pieces of work never hold small ones back: one thread takes nothing else. Tenants take turns, so
// that no tenant's many hold back another's few.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"

namespace kvcake {

class PreparePool {
 public:
  struct Options {
    int threads = 1;                // for work of any size, beside the one for what is small
    size_t small_bytes = 64 << 10;  // work on fewer bytes than these is small
    size_t queue_max = 1024;        // pieces of work of each kind that wait or run; of a tenant
                                    // with a name, half as many
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
  // the tenant's of its kind. False: too many wait already. `work` throws nothing.
  [[nodiscard]] bool Post(const std::string& tenant, size_t bytes, std::function<void()> work)
      EXCLUDES(mutex_);
  Load load() const EXCLUDES(mutex_);

 private:
  enum Kind { kSmall, kLarge };
  struct Work {
    std::string tenant;
    std::function<void()> run;
  };
  // What waits of a kind, by whose it is.
  struct Queue {
    std::deque<std::string> turns;  // those with work that waits, the next first
    std::unordered_map<std::string, std::deque<std::function<void()>>> waiting;
    std::unordered_map<std::string, size_t> load;  // waiting or running
    size_t load_all = 0;

    bool IsFull(const std::string& tenant, size_t max) const;
    void Add(Work work);
    Work TakeNext();
    void Done(const std::string& tenant);
  };

  void Run(bool only_small) EXCLUDES(mutex_);

  const Options options_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::array<Queue, 2> queues_ GUARDED_BY(mutex_);  // by Kind
  bool stop_ GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace kvcake
