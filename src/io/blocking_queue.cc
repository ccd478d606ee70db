#include <algorithm>
#include <deque>
#include <thread>
#include <unordered_set>

#include "base/mutex.h"
#include "io/io_queue.h"
#include "io/transfer.h"

namespace kvcake {
namespace {

Result<uint64_t> Run(const IoOp& op) {
  Transfer transfer(op);
  while (true) {
    ASSIGN_OR_RETURN(const size_t n, op.file->ReadAt(transfer.left(), transfer.offset()));
    if (transfer.Advance(n)) return transfer.done();
  }
}

class BlockingQueue : public IoQueue {
 public:
  explicit BlockingQueue(const IoQueueOptions& options)
      : requests_max_(std::max(options.requests_max, 1)), bytes_max_(options.bytes_max) {
    try {
      for (int i = 0; i < std::max(options.helper_threads, 1); ++i) {
        threads_.emplace_back([this] { Help(); });
      }
    } catch (...) {  // no memory, or no thread, is left
      JoinThreads();
      throw;
    }
  }

  ~BlockingQueue() override { JoinThreads(); }

  bool HasRoom(uint64_t bytes) const override {
    MutexLock lock(mutex_);
    return HasRoomLocked(bytes);
  }

  Status Submit(const IoOp& op) override {
    {
      MutexLock lock(mutex_);
      if (!HasRoomLocked(op.buffer.size())) {
        return Fail(ErrorCode::kResourceExhausted, "the I/O queue is full: {} requests, {} bytes",
                    in_flight_, bytes_in_flight_);
      }
      ++in_flight_;
      bytes_in_flight_ += op.buffer.size();
      submitted_.push_back(op);
    }
    work_.NotifyOne();
    return {};
  }

  void Cancel(uint64_t user_data) override {
    MutexLock lock(mutex_);
    auto it = std::find_if(submitted_.begin(), submitted_.end(),
                           [&](const IoOp& op) { return op.user_data == user_data; });
    if (it == submitted_.end()) return;  // running: let it finish
    CompleteLocked(*it, Fail(ErrorCode::kCancelled, "I/O cancelled"));
    submitted_.erase(it);
  }

  Status Wait(std::vector<IoCompletion>& completions, std::optional<TimePoint> deadline) override {
    MutexLock lock(mutex_);
    const TimePoint until = deadline.value_or(TimePoint::max());
    while (completed_.empty() && !woken_ && event_.WaitUntil(mutex_, until)) {
    }
    woken_ = false;
    for (auto& [completion, bytes] : completed_) {
      --in_flight_;
      bytes_in_flight_ -= bytes;
      completions.push_back(std::move(completion));
    }
    completed_.clear();
    return {};
  }

  void Wake() override {
    MutexLock lock(mutex_);
    woken_ = true;
    event_.NotifyOne();
  }

  int in_flight() const override {
    MutexLock lock(mutex_);
    return in_flight_;
  }

 private:
  void JoinThreads() {
    {
      MutexLock lock(mutex_);
      stop_ = true;
    }
    work_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  bool HasRoomLocked(uint64_t bytes) const REQUIRES(mutex_) {
    return in_flight_ == 0 ||
           (in_flight_ < requests_max_ && bytes_in_flight_ + bytes <= bytes_max_);
  }

  void CompleteLocked(const IoOp& op, Result<uint64_t> result) REQUIRES(mutex_) {
    completed_.emplace_back(IoCompletion{op.user_data, std::move(result)}, op.buffer.size());
    event_.NotifyOne();
  }

  void Help() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (true) {
      while (!stop_ && submitted_.empty()) work_.Wait(mutex_);
      if (submitted_.empty()) return;
      const IoOp op = submitted_.front();
      submitted_.pop_front();
      lock.Unlock();
      auto result = Run(op);
      lock.Lock();
      CompleteLocked(op, std::move(result));
    }
  }

  // Constant after construction.
  const int requests_max_;
  const uint64_t bytes_max_;

  mutable Mutex mutex_;
  CondVar work_;   // for the helpers
  CondVar event_;  // for Wait
  std::deque<IoOp> submitted_ GUARDED_BY(mutex_);
  // And the operation's bytes.
  std::vector<std::pair<IoCompletion, uint64_t>> completed_ GUARDED_BY(mutex_);
  int in_flight_ GUARDED_BY(mutex_) = 0;  // until returned by Wait
  uint64_t bytes_in_flight_ GUARDED_BY(mutex_) = 0;
  bool woken_ GUARDED_BY(mutex_) = false;
  bool stop_ GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoQueue> NewBlockingQueue(const IoQueueOptions& options) {
  return std::make_unique<BlockingQueue>(options);
}

}  // namespace kvcake
