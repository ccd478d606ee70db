#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <unordered_map>

#include "base/check.h"
#include "io/io_queue.h"
#include "io/transfer.h"

namespace kvcake {
namespace {

// Tags of completions that are not an operation's; operations are numbered from kFirstTag.
constexpr uint64_t kWakeTag = 0;
constexpr uint64_t kCancelTag = 1;
constexpr uint64_t kFirstTag = 2;

class UringQueue : public IoQueue {
 public:
  static Result<std::unique_ptr<IoQueue>> Create(const IoQueueOptions& options) {
    std::unique_ptr<UringQueue> queue(new UringQueue(options));
    RETURN_IF_ERROR(queue->Init());
    return queue;
  }

  ~UringQueue() override {
    std::vector<IoCompletion> ignored;
    while (!transfers_.empty() && Wait(ignored, std::nullopt)) ignored.clear();
    if (ring_ready_) io_uring_queue_exit(&ring_);
    if (event_fd_ >= 0) close(event_fd_);
  }

  bool HasRoom(uint64_t bytes) const override {
    return transfers_.empty() || (static_cast<int>(transfers_.size()) < requests_max_ &&
                                  bytes_in_flight_ + bytes <= bytes_max_);
  }

  Status Submit(const IoOp& op) override {
    CHECK(op.file != nullptr && op.file->fd() >= 0);
    CHECK(op.buffer.size() <= INT32_MAX);  // what one request to the kernel can move
    if (!HasRoom(op.buffer.size())) {
      return Fail(ErrorCode::kResourceExhausted, "the I/O queue is full: {} requests, {} bytes",
                  transfers_.size(), bytes_in_flight_);
    }
    const uint64_t tag = next_tag_++;
    auto it = transfers_.emplace(tag, Cancellable{Transfer(op)}).first;
    bytes_in_flight_ += op.buffer.size();
    CHECK(tags_.emplace(op.user_data, tag).second);
    Prepare(tag, it->second.transfer);
    Flush();
    return {};
  }

  void Cancel(uint64_t user_data) override {
    auto it = tags_.find(user_data);
    if (it == tags_.end()) return;
    transfers_.at(it->second).cancelled = true;
    io_uring_sqe* sqe = NextSqe();
    io_uring_prep_cancel64(sqe, it->second, 0);
    sqe->user_data = kCancelTag;
    Flush();
  }

  Status Wait(std::vector<IoCompletion>& completions, std::optional<TimePoint> deadline) override {
    const size_t before = completions.size();
    while (true) {
      const bool woken = Reap(completions);
      Flush();
      if (woken || completions.size() > before) return {};
      int r;
      io_uring_cqe* cqe = nullptr;
      if (deadline) {
        const double left = (*deadline - Clock::Real().Now()).count();
        if (left <= 0) return {};
        __kernel_timespec ts;
        ts.tv_sec = static_cast<int64_t>(left);
        ts.tv_nsec = static_cast<int64_t>((left - static_cast<double>(ts.tv_sec)) * 1e9);
        r = io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &ts, nullptr);
      } else {
        r = io_uring_submit_and_wait(&ring_, 1);
      }
      if (r < 0 && r != -ETIME && r != -EINTR && r != -EAGAIN && r != -EBUSY) {
        return Fail(ErrorCode::kIo, "io_uring wait failed: {}", std::strerror(-r));
      }
    }
  }

  void Wake() override {
    const uint64_t one = 1;
    // The counter is far from its limit, so this never blocks; and a pending wake is enough.
    (void)!write(event_fd_, &one, sizeof(one));
  }

  int in_flight() const override { return static_cast<int>(transfers_.size()); }

 private:
  struct Cancellable {
    Transfer transfer;
    // The kernel finds nothing to cancel between two calls, and may end one with EINTR.
    bool cancelled = false;
  };

  explicit UringQueue(const IoQueueOptions& options)
      : requests_max_(std::max(options.requests_max, 1)), bytes_max_(options.bytes_max) {}

  Status Init() {
    // Twice the requests: cancellations and the wake-up need entries too.
    const unsigned entries = std::bit_ceil(static_cast<unsigned>(2 * requests_max_ + 2));
    const int r = io_uring_queue_init(std::min(entries, 4096u), &ring_, IORING_SETUP_CLAMP);
    if (r < 0) {
      return Fail(ErrorCode::kUnsupported, "io_uring is not available: {}", std::strerror(-r));
    }
    ring_ready_ = true;
    event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event_fd_ < 0) {
      return Fail(ErrorCode::kResourceExhausted, "cannot make an eventfd: {}",
                  std::strerror(errno));
    }
    ArmWake();
    Flush();
    return {};
  }

  void Prepare(uint64_t tag, const Transfer& transfer) {
    io_uring_sqe* sqe = NextSqe();
    const auto left = transfer.left();
    const int fd = transfer.op().file->fd();
    const auto bytes = static_cast<unsigned>(left.size());
    io_uring_prep_read(sqe, fd, left.data(), bytes, transfer.offset());
    sqe->user_data = tag;
  }

  void ArmWake() {
    io_uring_sqe* sqe = NextSqe();
    io_uring_prep_poll_add(sqe, event_fd_, POLLIN);
    sqe->user_data = kWakeTag;
  }

  io_uring_sqe* NextSqe() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    while (sqe == nullptr) {  // every entry is waiting to be submitted
      Flush();
      sqe = io_uring_get_sqe(&ring_);
    }
    return sqe;
  }

  // What the kernel does not take now (EAGAIN, EBUSY, EINTR) is taken by the next call.
  void Flush() { io_uring_submit(&ring_); }

  // Takes every completion there is; true when one was a wake-up.
  bool Reap(std::vector<IoCompletion>& completions) {
    bool woken = false;
    io_uring_cqe* cqe;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
      const uint64_t tag = cqe->user_data;
      const int32_t res = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      if (tag == kWakeTag) {
        uint64_t count;
        (void)!read(event_fd_, &count, sizeof(count));
        ArmWake();
        woken = true;
      } else if (tag != kCancelTag) {
        OnCompletion(tag, res, completions);
      }
    }
    return woken;
  }

  void OnCompletion(uint64_t tag, int32_t res, std::vector<IoCompletion>& completions) {
    auto it = transfers_.find(tag);
    CHECK(it != transfers_.end());
    auto& [transfer, cancelled] = it->second;
    const bool has_ended =
        res >= 0 ? transfer.Advance(static_cast<uint64_t>(res)) : res != -EINTR && res != -EAGAIN;
    if (!has_ended && !cancelled) {
      Prepare(tag, transfer);
      return;
    }
    const IoOp op = transfer.op();
    completions.push_back({op.user_data, ResultOf(transfer, has_ended ? res : -ECANCELED)});
    bytes_in_flight_ -= op.buffer.size();
    tags_.erase(op.user_data);
    transfers_.erase(it);
  }

  static Result<uint64_t> ResultOf(const Transfer& transfer, int32_t res) {
    if (res >= 0) return transfer.done();
    if (res == -ECANCELED) return Fail(ErrorCode::kCancelled, "I/O cancelled");
    return tl::unexpected(ErrnoError(-res, "read", transfer.op().file->path()));
  }

  // Constant after construction.
  const int requests_max_;
  const uint64_t bytes_max_;
  int event_fd_ = -1;
  bool ring_ready_ = false;

  // The owning thread's; Wake touches event_fd_ only.
  io_uring ring_{};
  std::unordered_map<uint64_t, Cancellable> transfers_;  // by tag
  std::unordered_map<uint64_t, uint64_t> tags_;          // by user_data
  uint64_t next_tag_ = kFirstTag;
  uint64_t bytes_in_flight_ = 0;
};

}  // namespace

Result<std::unique_ptr<IoQueue>> NewUringQueue(const IoQueueOptions& options) {
  return UringQueue::Create(options);
}

}  // namespace kvcake
