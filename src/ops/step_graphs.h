// Steps that come again, replayed as CUDA graphs: the device goes from kernel to kernel without
// waiting for the host to enqueue the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "base/status.h"
#include "ops/compute.h"

namespace kvcake {

// What a function has enqueued.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  // Enqueues it again: the same kernels with the same arguments.
  virtual void Launch() = 0;
};

// A step is called when its key comes for the first time, so that its kernels are there and chosen;
// captured the second time, and launched from then on. For the thread that runs operations.
class StepGraphs {
 public:
  // All that decides which operations a step enqueues, and with what arguments. What they read from
  // the device's memory may change.
  using Key = std::vector<uint64_t>;
  using Enqueue = std::function<void()>;
  // Calls the function, and returns what it would have enqueued.
  using Capture = std::function<Result<std::unique_ptr<StepGraph>>(const Enqueue& enqueue)>;

  // Keeps up to `max` graphs, and as many keys that came once; what was used longest ago goes. 0,
  // or on the CPU: Run calls.
  StepGraphs(const Compute& compute, size_t max);
  StepGraphs(Capture capture, size_t max);

  // Does what `enqueue` does, which enqueues operations and nothing else: it neither waits, nor
  // allocates memory of the device, nor copies what the host may change. After a capture that
  // fails, every step is called.
  void Run(const Key& key, const Enqueue& enqueue);
  uint64_t launches() const { return launches_; }  // of graphs, so far

 private:
  struct Entry {
    Key key;
    std::unique_ptr<StepGraph> graph = nullptr;  // nullptr: the key came once
  };

  void Trim();

  Capture capture_;  // empty: Run calls
  const size_t max_;
  std::list<Entry> entries_;  // by last use, the latest first
  uint64_t launches_ = 0;
};

}  // namespace kvcake
