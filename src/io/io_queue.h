// Asynchronous reads of whole buffers.
//
// Submit, Cancel and Wait belong to one thread at a time; Wake may be called by any. Threads sleep
// in the kernel, they never spin. Buffers and files belong to the queue from Submit until their
// completion has been returned by Wait; the destructor waits for all that is in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "io/file_system.h"

namespace kvcake {

struct IoOp {
  File* file = nullptr;
  uint64_t offset = 0;
  std::span<std::byte> buffer;
  uint64_t user_data = 0;  // names the operation; unique among those in flight
};

struct IoCompletion {
  uint64_t user_data = 0;
  // Bytes read: the buffer's size, or less when the file ended. Short reads, EINTR and EAGAIN have
  // been continued. kCancelled after Cancel.
  Result<uint64_t> bytes = 0;
};

struct IoQueueOptions {
  int requests_max = 64;
  uint64_t bytes_max = 64ull << 20;
  int helper_threads = 4;  // of a BlockingQueue
};

class IoQueue {
 public:
  virtual ~IoQueue() = default;

  // Whether Submit would take an operation of this size now. An idle queue takes any size.
  virtual bool HasRoom(uint64_t bytes) const = 0;
  // kResourceExhausted when the bounds are reached: nothing was started.
  [[nodiscard]] virtual Status Submit(const IoOp& op) = 0;
  // Asks for an operation to end early; its completion still comes, cancelled or done.
  virtual void Cancel(uint64_t user_data) = 0;
  // Sleeps until there is a completion, a Wake or the deadline; appends all completions there are.
  virtual Status Wait(std::vector<IoCompletion>& completions,
                      std::optional<TimePoint> deadline) = 0;
  virtual void Wake() = 0;
  virtual int in_flight() const = 0;
};

// io_uring: kUnsupported where the kernel or a sandbox forbids it.
Result<std::unique_ptr<IoQueue>> NewUringQueue(const IoQueueOptions& options);
// Plain calls on helper threads: works everywhere and with every File.
std::unique_ptr<IoQueue> NewBlockingQueue(const IoQueueOptions& options);
// io_uring, else helper threads with one loud warning per process. For files of FileSystem::Real().
Result<std::unique_ptr<IoQueue>> NewIoQueue(const IoQueueOptions& options);

}  // namespace kvcake
