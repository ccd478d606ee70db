#include "comm/shaped_comm.h"

#include <sys/prctl.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/callback_thread.h"
#include "base/check.h"
#include "base/mutex.h"

namespace kvcake {
namespace {

class ShapedComm : public Comm {
 public:
  ShapedComm(std::unique_ptr<Comm> inner, const ShapedCommOptions& options)
      : inner_(std::move(inner)), bursts_(options.noise, inner_->size(), options.epoch) {
    for (int to = 0; to < size(); ++to) {
      const auto it = options.link_to.find(to);
      links_.push_back({it == options.link_to.end() ? options.link : it->second});
      CHECK(links_.back().shape.rate_bytes_per_s > 0 && links_.back().shape.latency.count() >= 0);
    }
    // The default lets a sleep last 50 us longer.
    timers_.Soon([] { prctl(PR_SET_TIMERSLACK, 1000UL); });
  }
  ~ShapedComm() override {
    ShapedComm::Close(Fail(ErrorCode::kCancelled, "rank {} has ended", rank()).value());
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  void Send(int to, int tag, std::span<const std::byte> data, Done done) override {
    if (!CheckTransfer(*this, to, tag)) return inner_->Send(to, tag, data, std::move(done));
    MutexLock lock(mutex_);
    if (closed_) return EndLocked(std::move(done));
    Link& link = links_[to];
    const TimePoint now = Clock::Real().Now();
    bursts_.Forget(now);
    link.free = bursts_.Passed(rank(), to, std::max(now, link.free),
                               static_cast<double>(data.size()), link.shape.rate_bytes_per_s);
    const uint64_t id = next_id_++;
    on_the_way_.emplace(id, Message{to, tag, data, std::move(done)});
    timers_.At(link.free + link.shape.latency, [this, id] { Arrive(id); });
  }

  void Receive(int from, int tag, std::span<std::byte> into, Done done) override {
    inner_->Receive(from, tag, into, std::move(done));
  }

  void Close(Error why) override {
    {
      MutexLock lock(mutex_);
      if (!closed_) {
        closed_ = why;
        for (auto& [id, message] : on_the_way_) EndLocked(std::move(message.done));
        on_the_way_.clear();
      }
      while (busy_ > 0) idle_.Wait(mutex_);
    }
    inner_->Close(std::move(why));
  }

  uint64_t sent_bytes() const override { return inner_->sent_bytes(); }

 private:
  struct Link {
    LinkShape shape;
    TimePoint free = {};  // when the last message so far will have left it
  };
  struct Message {
    int to, tag;
    std::span<const std::byte> data;
    Done done;
  };

  // Unless Close was first.
  void Arrive(uint64_t id) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    auto node = on_the_way_.extract(id);
    if (node.empty()) return;
    ++busy_;
    lock.Unlock();
    Message& message = node.mapped();
    inner_->Send(message.to, message.tag, message.data, std::move(message.done));
    lock.Lock();
    --busy_;
    idle_.NotifyAll();
  }

  void EndLocked(Done done) REQUIRES(mutex_) {
    ++busy_;
    timers_.Soon([this, done = std::move(done), why = *closed_]() mutable {
      done(tl::unexpected(std::move(why)));
      done = nullptr;
      MutexLock lock(mutex_);
      --busy_;
      idle_.NotifyAll();
    });
  }

  const std::unique_ptr<Comm> inner_;
  Mutex mutex_;
  CondVar idle_;
  LinkBursts bursts_ GUARDED_BY(mutex_);
  std::vector<Link> links_ GUARDED_BY(mutex_);  // by receiver
  std::map<uint64_t, Message> on_the_way_ GUARDED_BY(mutex_);
  uint64_t next_id_ GUARDED_BY(mutex_) = 0;
  int busy_ GUARDED_BY(mutex_) = 0;  // functions of the thread that use a message
  std::optional<Error> closed_ GUARDED_BY(mutex_);

  CallbackThread timers_;
};

}  // namespace

std::unique_ptr<Comm> NewShapedComm(std::unique_ptr<Comm> inner, const ShapedCommOptions& options) {
  return std::make_unique<ShapedComm>(std::move(inner), options);
}

}  // namespace kvcake
