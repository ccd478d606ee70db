#include "comm/wait.h"

#include <fmt/ranges.h>

#include <set>
#include <utility>

#include "base/mutex.h"

namespace kvcake {

struct TransferWait::State {
  Mutex mutex;
  CondVar changed;
  std::multiset<int> open GUARDED_BY(mutex);  // peers, of each transfer
  Status status GUARDED_BY(mutex);
};

TransferWait::TransferWait() : state_(std::make_shared<State>()) {}

Comm::Done TransferWait::Add(int peer) {
  MutexLock lock(state_->mutex);
  state_->open.insert(peer);
  return [state = state_, peer](Status status) {
    MutexLock lock(state->mutex);
    state->open.erase(state->open.find(peer));
    if (state->status) state->status = std::move(status);
    state->changed.NotifyAll();
  };
}

Status TransferWait::Wait(TimePoint deadline, std::string_view what) const {
  MutexLock lock(state_->mutex);
  while (!state_->open.empty() && state_->status &&
         state_->changed.WaitUntil(state_->mutex, deadline)) {
  }
  if (state_->open.empty() || !state_->status) return state_->status;
  const std::set<int> late(state_->open.begin(), state_->open.end());
  return Fail(ErrorCode::kDeadline,
              "{}: rank {} is not done in time: it hangs, or the network does (--rank-timeout)",
              what, fmt::join(late, ", "));
}

bool TransferWait::Done() const {
  MutexLock lock(state_->mutex);
  return state_->open.empty();
}

}  // namespace kvcake
