#include "comm/memory_comm.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/callback_thread.h"
#include "base/check.h"
#include "base/mutex.h"

namespace kvcake {
namespace {

struct Route {
  int from, to, tag;
  auto operator<=>(const Route&) const = default;
};

struct WaitingSend {
  std::span<const std::byte> data;
  Comm::Done done;
};

struct WaitingReceive {
  std::span<std::byte> into;
  Comm::Done done;
};

// The ranks of one group; a route has unmatched sends or unmatched receives, never both.
class Group {
 public:
  explicit Group(int size) : size_(size), ranks_(size) {}

  int size() const { return size_; }

  void Send(const Route& route, WaitingSend outgoing) {
    MutexLock lock(mutex_);
    if (const auto error = ErrorLocked(route.from, route.to)) {
      return EndLocked(route.from, std::move(outgoing.done), *error);
    }
    if (auto incoming = TakeFirst(receives_, route)) {
      return DeliverLocked(route, std::move(outgoing), std::move(*incoming));
    }
    sends_[route].push_back(std::move(outgoing));
  }

  void Receive(const Route& route, WaitingReceive incoming) {
    MutexLock lock(mutex_);
    if (const auto error = ErrorLocked(route.to, route.from)) {
      return EndLocked(route.to, std::move(incoming.done), *error);
    }
    if (auto outgoing = TakeFirst(sends_, route)) {
      return DeliverLocked(route, std::move(*outgoing), std::move(incoming));
    }
    receives_[route].push_back(std::move(incoming));
  }

  void Refuse(int rank, Comm::Done done, const Error& error) {
    MutexLock lock(mutex_);
    EndLocked(rank, std::move(done), error);
  }

  // Returns when nothing of this rank's is left.
  void Close(int rank, Error why) {
    MutexLock lock(mutex_);
    if (!ranks_[rank].closed) {
      ranks_[rank].closed = std::move(why);
      EndAllLocked(sends_, rank, &Route::from);
      EndAllLocked(receives_, rank, &Route::to);
    }
    while (ranks_[rank].busy > 0) idle_.Wait(mutex_);
  }

  uint64_t sent_bytes(int rank) const {
    MutexLock lock(mutex_);
    return ranks_[rank].sent_bytes;
  }

 private:
  struct Rank {
    std::optional<Error> closed;
    int busy = 0;  // functions given to the thread that use what is this rank's
    uint64_t sent_bytes = 0;
  };

  template <typename Transfer>
  using Queues = std::map<Route, std::deque<Transfer>>;

  template <typename Transfer>
  static std::optional<Transfer> TakeFirst(Queues<Transfer>& queues, const Route& route) {
    const auto it = queues.find(route);
    if (it == queues.end()) return std::nullopt;
    std::optional<Transfer> first = std::move(it->second.front());
    it->second.pop_front();
    if (it->second.empty()) queues.erase(it);
    return first;
  }

  // Why a transfer of `rank` with `peer` cannot be.
  std::optional<Error> ErrorLocked(int rank, int peer) const REQUIRES(mutex_) {
    if (ranks_[rank].closed) return ranks_[rank].closed;
    if (!ranks_[peer].closed) return std::nullopt;
    return Fail(ErrorCode::kIo, "rank {} is gone: {}", peer, ranks_[peer].closed->message).value();
  }

  void EndLocked(int rank, Comm::Done done, const Error& error) REQUIRES(mutex_) {
    RunLocked({rank}, [done = std::move(done), error] { done(tl::unexpected(error)); });
  }

  // Ends transfers of or with `rank`, for their owner: the given end of their route.
  template <typename Transfer>
  void EndAllLocked(Queues<Transfer>& queues, int rank, int Route::*owner) REQUIRES(mutex_) {
    for (auto it = queues.begin(); it != queues.end();) {
      const Route route = it->first;
      if (route.from != rank && route.to != rank) {
        ++it;
        continue;
      }
      const int other = route.*owner == route.from ? route.to : route.from;
      const Error error = *ErrorLocked(route.*owner, other);
      for (Transfer& transfer : it->second) {
        EndLocked(route.*owner, std::move(transfer.done), error);
      }
      it = queues.erase(it);
    }
  }

  void DeliverLocked(const Route& route, WaitingSend outgoing, WaitingReceive incoming)
      REQUIRES(mutex_) {
    RunLocked({route.from, route.to},
              [this, route, outgoing = std::move(outgoing), incoming = std::move(incoming)] {
                const Status status =
                    CheckSize(route.from, route.tag, incoming.into.size(), outgoing.data.size());
                if (status) std::ranges::copy(outgoing.data, incoming.into.begin());
                {
                  MutexLock lock(mutex_);
                  ranks_[route.from].sent_bytes += outgoing.data.size();
                }
                outgoing.done({});
                incoming.done(status);
              });
  }

  // Has the thread run `function`, which is destroyed before Close returns for any of `ranks`.
  void RunLocked(std::vector<int> ranks, std::function<void()> function) REQUIRES(mutex_) {
    for (const int rank : ranks) ++ranks_[rank].busy;
    thread_.Soon([this, ranks = std::move(ranks), function = std::move(function)]() mutable {
      function();
      function = nullptr;
      MutexLock lock(mutex_);
      for (const int rank : ranks) --ranks_[rank].busy;
      idle_.NotifyAll();
    });
  }

  const int size_;

  mutable Mutex mutex_;
  CondVar idle_;
  std::vector<Rank> ranks_ GUARDED_BY(mutex_);
  Queues<WaitingSend> sends_ GUARDED_BY(mutex_);
  Queues<WaitingReceive> receives_ GUARDED_BY(mutex_);

  CallbackThread thread_;
};

class MemoryComm : public Comm {
 public:
  MemoryComm(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  ~MemoryComm() override {
    MemoryComm::Close(Fail(ErrorCode::kCancelled, "rank {} has ended", rank_).value());
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  void Send(int to, int tag, std::span<const std::byte> data, Done done) override {
    const Status status = CheckTransfer(*this, to, tag);
    if (!status) return group_->Refuse(rank_, std::move(done), status.error());
    group_->Send({rank_, to, tag}, {data, std::move(done)});
  }

  void Receive(int from, int tag, std::span<std::byte> into, Done done) override {
    const Status status = CheckTransfer(*this, from, tag);
    if (!status) return group_->Refuse(rank_, std::move(done), status.error());
    group_->Receive({from, rank_, tag}, {into, std::move(done)});
  }

  void Close(Error why) override { group_->Close(rank_, std::move(why)); }
  uint64_t sent_bytes() const override { return group_->sent_bytes(rank_); }

 private:
  const std::shared_ptr<Group> group_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Comm>> NewMemoryComms(int size) {
  CHECK(size >= 1);
  const auto group = std::make_shared<Group>(size);
  std::vector<std::unique_ptr<Comm>> comms;
  for (int rank = 0; rank < size; ++rank) {
    comms.push_back(std::make_unique<MemoryComm>(group, rank));
  }
  return comms;
}

}  // namespace kvcake
