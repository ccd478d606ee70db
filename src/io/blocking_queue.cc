#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "io/io_queue.h"
#include "io/transfer.h"

namespace kvcake {
namespace {

Result<uint64_t> Run(const IoOp& op) {
  if (op.kind == IoOp::Kind::kWrite) {
    const std::span<const std::byte> buffer = op.buffer;
    if (auto status = WriteFully(*op.file, {&buffer, 1}, op.offset); !status) {
      return tl::unexpected(status.error());
    }
    return buffer.size();
  }
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
    for (int i = 0; i < std::max(options.helper_threads, 1); ++i) {
      threads_.emplace_back([this] { Help(); });
    }
  }

  ~BlockingQueue() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  bool HasRoom(uint64_t bytes) const override {
    std::lock_guard lock(mutex_);
    return HasRoomLocked(bytes);
  }

  Status Submit(const IoOp& op) override {
    {
      std::lock_guard lock(mutex_);
      if (!HasRoomLocked(op.buffer.size())) {
        return Fail(ErrorCode::kResourceExhausted, "the I/O queue is full: {} requests, {} bytes",
                    in_flight_, bytes_in_flight_);
      }
      ++in_flight_;
      bytes_in_flight_ += op.buffer.size();
      submitted_.push_back(op);
    }
    work_.notify_one();
    return {};
  }

  void Cancel(uint64_t user_data) override {
    std::lock_guard lock(mutex_);
    auto it = std::find_if(submitted_.begin(), submitted_.end(),
                           [&](const IoOp& op) { return op.user_data == user_data; });
    if (it == submitted_.end()) return;  // running: let it finish
    CompleteLocked(*it, Fail(ErrorCode::kCancelled, "I/O cancelled"));
    submitted_.erase(it);
  }

  Status Wait(std::vector<IoCompletion>& completions, std::optional<TimePoint> deadline) override {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return !completed_.empty() || woken_; };
    if (deadline) {
      event_.wait_until(
          lock, std::chrono::time_point_cast<std::chrono::steady_clock::duration>(*deadline),
          ready);
    } else {
      event_.wait(lock, ready);
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
    std::lock_guard lock(mutex_);
    woken_ = true;
    event_.notify_one();
  }

  int in_flight() const override {
    std::lock_guard lock(mutex_);
    return in_flight_;
  }

 private:
  bool HasRoomLocked(uint64_t bytes) const {
    return in_flight_ == 0 ||
           (in_flight_ < requests_max_ && bytes_in_flight_ + bytes <= bytes_max_);
  }

  void CompleteLocked(const IoOp& op, Result<uint64_t> result) {
    completed_.emplace_back(IoCompletion{op.user_data, std::move(result)}, op.buffer.size());
    event_.notify_one();
  }

  void Help() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return stop_ || !submitted_.empty(); });
      if (submitted_.empty()) return;
      const IoOp op = submitted_.front();
      submitted_.pop_front();
      lock.unlock();
      auto result = Run(op);
      lock.lock();
      CompleteLocked(op, std::move(result));
    }
  }

  // Constant after construction.
  const int requests_max_;
  const uint64_t bytes_max_;

  mutable std::mutex mutex_;
  std::condition_variable work_;   // for the helpers
  std::condition_variable event_;  // for Wait
  // Guarded by mutex_.
  std::deque<IoOp> submitted_;
  std::vector<std::pair<IoCompletion, uint64_t>> completed_;  // and the operation's bytes
  int in_flight_ = 0;                                         // until returned by Wait
  uint64_t bytes_in_flight_ = 0;
  bool woken_ = false;
  bool stop_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoQueue> NewBlockingQueue(const IoQueueOptions& options) {
  return std::make_unique<BlockingQueue>(options);
}

}  // namespace kvcake
