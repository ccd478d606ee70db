#include "comm/mpi_comm.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"

namespace kvcake {
namespace {

// How long the thread sleeps while transfers are open: longer while none of them ends.
constexpr Seconds kPollMin(50e-6), kPollMax(200e-6);
constexpr double kPollGrowth = 1.25;

std::string TextOf(int error) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) return fmt::format("{}", error);
  return std::string(text, length);
}

int ClassOf(int error) {
  int error_class = error;
  MPI_Error_class(error, &error_class);
  return error_class;
}

struct Transfer {
  bool is_send;
  int peer, tag;
  uint64_t bytes;
  Comm::Done done;
};

class MpiComm : public Comm {
 public:
  MpiComm(int rank, int size, Seconds close_timeout, bool& unfinished)
      : rank_(rank), size_(size), close_timeout_(close_timeout), unfinished_(unfinished) {
    thread_ = std::thread([this] { Loop(); });
  }

  ~MpiComm() override {
    MpiComm::Close(Fail(ErrorCode::kCancelled, "rank {} has ended", rank_).value());
    {
      MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.NotifyAll();
    thread_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void Send(int to, int tag, std::span<const std::byte> data, Done done) override {
    Start({true, to, tag, data.size(), std::move(done)}, [&](MPI_Request* request) {
      return MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, to, tag,
                       MPI_COMM_WORLD, request);
    });
  }

  void Receive(int from, int tag, std::span<std::byte> into, Done done) override {
    Start({false, from, tag, into.size(), std::move(done)}, [&](MPI_Request* request) {
      return MPI_Irecv(into.data(), static_cast<int>(into.size()), MPI_BYTE, from, tag,
                       MPI_COMM_WORLD, request);
    });
  }

  void Close(Error why) override {
    CHECK(std::this_thread::get_id() != thread_.get_id());
    MutexLock lock(mutex_);
    const bool first = !closed_;
    if (first) {
      closed_ = std::move(why);
      for (size_t i = 0; i < open_.size(); ++i) {
        if (!open_[i].is_send) MPI_Cancel(&requests_[i]);
      }
    }
    const TimePoint deadline = Clock::Real().Now() + close_timeout_;
    while (!AllEndedLocked() && changed_.WaitUntil(mutex_, deadline)) {
    }
    if (AllEndedLocked()) return;
    // The requests are left as they are: MPI cannot take them back.
    unfinished_ = unfinished_ || !open_.empty();
    for (Transfer& transfer : open_) EndLocked(std::move(transfer), tl::unexpected(*closed_));
    open_.clear();
    requests_.clear();
    changed_.NotifyAll();
    while (!AllEndedLocked()) changed_.Wait(mutex_);
  }

  uint64_t sent_bytes() const override {
    MutexLock lock(mutex_);
    return sent_bytes_;
  }

 private:
  // Has MPI begin a transfer, unless it cannot be.
  template <typename Begin>
  void Start(Transfer transfer, Begin begin) EXCLUDES(mutex_) {
    Status status = CheckTransfer(*this, transfer.peer, transfer.tag);
    if (status && transfer.bytes > std::numeric_limits<int>::max()) {
      status = Fail(ErrorCode::kUnsupported,
                    "a message of {} bytes is too large for MPI: send at most 2 GiB at once",
                    transfer.bytes);
    }
    MutexLock lock(mutex_);
    if (closed_) status = tl::unexpected(*closed_);
    MPI_Request request = MPI_REQUEST_NULL;
    if (status) {
      const int error = begin(&request);
      if (error != MPI_SUCCESS) status = ErrorOf(transfer, error);
    }
    if (status) {
      requests_.push_back(request);
      open_.push_back(std::move(transfer));
    } else {
      EndLocked(std::move(transfer), status);
    }
    changed_.NotifyAll();
  }

  bool AllEndedLocked() const REQUIRES(mutex_) {
    return open_.empty() && ended_.empty() && !calling_;
  }

  static tl::unexpected<Error> ErrorOf(const Transfer& transfer, int error) {
    return Fail(ErrorCode::kIo, "rank {} {}: MPI says {}", transfer.peer,
                transfer.is_send ? "cannot be sent to" : "cannot be received from", TextOf(error));
  }

  void EndLocked(Transfer transfer, Status status) REQUIRES(mutex_) {
    ended_.emplace_back(std::move(transfer.done), std::move(status));
  }

  Status OutcomeLocked(const Transfer& transfer, const MPI_Status& status, int error) const
      REQUIRES(mutex_) {
    if (!transfer.is_send && ClassOf(error) == MPI_ERR_TRUNCATE) {
      return Fail(ErrorCode::kCorrupt,
                  "rank {} sent more than the {} bytes that were expected with tag {}: the ranks "
                  "disagree",
                  transfer.peer, transfer.bytes, transfer.tag);
    }
    if (error != MPI_SUCCESS) return ErrorOf(transfer, error);
    int cancelled = 0;
    MPI_Test_cancelled(&status, &cancelled);
    if (cancelled != 0) return tl::unexpected(*closed_);
    if (transfer.is_send) return {};
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    return CheckSize(transfer.peer, transfer.tag, transfer.bytes, bytes);
  }

  // Moves the transfers that have ended from open_ to ended_.
  void PollLocked() REQUIRES(mutex_) {
    const int open = static_cast<int>(requests_.size());
    indices_.resize(open);
    statuses_.resize(open);
    int count = 0;
    const int error =
        MPI_Testsome(open, requests_.data(), &count, indices_.data(), statuses_.data());
    const bool in_status = ClassOf(error) == MPI_ERR_IN_STATUS;
    if (error != MPI_SUCCESS && !in_status) {  // MPI itself is broken: none will end any more
      unfinished_ = true;
      for (Transfer& transfer : open_) EndLocked(std::move(transfer), ErrorOf(transfer, error));
      open_.clear();
      requests_.clear();
      return;
    }
    for (int i = 0; i < count; ++i) {
      Transfer& transfer = open_[indices_[i]];
      const Status status =
          OutcomeLocked(transfer, statuses_[i], in_status ? statuses_[i].MPI_ERROR : MPI_SUCCESS);
      if (status && transfer.is_send) sent_bytes_ += transfer.bytes;
      // Open MPI keeps the requests that failed.
      MPI_Request& request = requests_[indices_[i]];
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
      EndLocked(std::move(transfer), status);
    }
    size_t kept = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      requests_[kept] = requests_[i];
      if (kept != i) open_[kept] = std::move(open_[i]);
      ++kept;
    }
    requests_.resize(kept);
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(kept), open_.end());
  }

  void Loop() EXCLUDES(mutex_) {
    prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default lets a sleep last 50 us longer
    Seconds poll = kPollMin;
    MutexLock lock(mutex_);
    while (true) {
      if (!open_.empty()) PollLocked();
      if (!ended_.empty()) {
        auto ended = std::exchange(ended_, {});
        calling_ = true;
        lock.Unlock();
        for (auto& [done, status] : ended) done(std::move(status));
        ended.clear();  // what the callbacks captured goes before Close returns
        lock.Lock();
        calling_ = false;
        changed_.NotifyAll();
        poll = kPollMin;
      } else if (open_.empty()) {
        if (stop_) return;
        while (!stop_ && open_.empty() && ended_.empty()) changed_.Wait(mutex_);
        poll = kPollMin;
      } else {
        lock.Unlock();
        std::this_thread::sleep_for(poll);
        poll = std::min(poll * kPollGrowth, kPollMax);
        lock.Lock();
      }
    }
  }

  const int rank_, size_;
  const Seconds close_timeout_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool& unfinished_ GUARDED_BY(mutex_);  // the session's
  std::vector<MPI_Request> requests_ GUARDED_BY(mutex_);
  std::vector<Transfer> open_ GUARDED_BY(mutex_);  // as requests_
  std::vector<std::pair<Done, Status>> ended_ GUARDED_BY(mutex_);
  bool calling_ GUARDED_BY(mutex_) = false;
  std::optional<Error> closed_ GUARDED_BY(mutex_);
  uint64_t sent_bytes_ GUARDED_BY(mutex_) = 0;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::vector<int> indices_ GUARDED_BY(mutex_);
  std::vector<MPI_Status> statuses_ GUARDED_BY(mutex_);

  std::thread thread_;
};

// Ends the process if it still exists after a while, because MPI waits for ranks that never come.
class Watchdog {
 public:
  Watchdog(Seconds timeout, int rank, int status)
      : thread_([this, timeout, rank, status] {
          const TimePoint deadline = Clock::Real().Now() + timeout;
          MutexLock lock(mutex_);
          while (!stop_ && ended_.WaitUntil(mutex_, deadline)) {
          }
          if (stop_) return;
          std::fprintf(stderr, "rank %d: the other ranks have not ended within %g s: giving up\n",
                       rank, timeout.count());
          _exit(status);
        }) {}
  ~Watchdog() {
    {
      MutexLock lock(mutex_);
      stop_ = true;
    }
    ended_.NotifyAll();
    thread_.join();
  }

 private:
  Mutex mutex_;
  CondVar ended_;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class OpenMpiSession : public MpiSession {
 public:
  explicit OpenMpiSession(const MpiOptions& options) : options_(options) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~OpenMpiSession() override {
    if (!ended_) OpenMpiSession::End(0);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Comm> NewComm() override {
    return std::make_unique<MpiComm>(rank_, size_, options_.close_timeout, unfinished_);
  }

  void End(int status) override {
    CHECK(!ended_);
    ended_ = true;
    const int failed = status == 0 ? 1 : status;
    const Watchdog watchdog(options_.end_timeout, rank_, failed);
    if (status == 0 && !unfinished_) {
      MPI_Finalize();
      return;
    }
    std::fprintf(stderr, "rank %d ends all ranks%s\n", rank_,
                 unfinished_ ? ": it has transfers that cannot end" : "");
    MPI_Abort(MPI_COMM_WORLD, failed);
    _exit(failed);
  }

 private:
  const MpiOptions options_;
  int rank_ = 0, size_ = 1;
  bool unfinished_ = false;  // a Comm's Close has left transfers
  bool ended_ = false;
};

}  // namespace

Status CheckMpi() { return {}; }

bool StartedByMpirun() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

Result<std::unique_ptr<MpiSession>> StartMpi(const MpiOptions& options) {
  setenv("OMPI_MCA_pml", "ob1", 0);
  setenv("OMPI_MCA_btl", "tcp,self", 0);
  setenv("OMPI_MCA_btl_tcp_progress_thread", "1", 0);
  // Without put: with it 4.1.4 writes what a message has too much behind the receiver's buffer.
  setenv("OMPI_MCA_btl_tcp_flags", "send,inplace,need-ack,need-csum,hetero-rdma", 0);
  int started = 0;
  MPI_Initialized(&started);
  if (started != 0) {
    return Fail(ErrorCode::kInvalidArgument, "MPI can be started once in a process");
  }
  int provided = MPI_THREAD_SINGLE;
  const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  if (error != MPI_SUCCESS) return Fail(ErrorCode::kIo, "MPI does not start: {}", TextOf(error));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (provided < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    return Fail(ErrorCode::kUnsupported, "this MPI cannot be called by several threads");
  }
  return std::make_unique<OpenMpiSession>(options);
}

}  // namespace kvcake
