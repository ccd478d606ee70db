#include "comm/wait.h"

#include <utility>

#include "base/mutex.h"

namespace kvcake {

struct TransferWait::State {
  Mutex mutex;
  CondVar changed;
  int open GUARDED_BY(mutex) = 0;
  Status status GUARDED_BY(mutex);
};

TransferWait::TransferWait() : state_(std::make_shared<State>()) {}

Comm::Done TransferWait::Add() {
  MutexLock lock(state_->mutex);
  ++state_->open;
  return [state = state_](Status status) {
    MutexLock lock(state->mutex);
    --state->open;
    if (state->status) state->status = std::move(status);
    state->changed.NotifyAll();
  };
}

Status TransferWait::Wait(TimePoint deadline, std::string_view what) const {
  MutexLock lock(state_->mutex);
  while (state_->open > 0 && state_->status && state_->changed.WaitUntil(state_->mutex, deadline)) {
  }
  if (state_->open == 0 || !state_->status) return state_->status;
  return Fail(ErrorCode::kDeadline, "{}: {} transfers have not ended in time", what, state_->open);
}

bool TransferWait::Done() const {
  MutexLock lock(state_->mutex);
  return state_->open == 0;
}

}  // namespace kvcake
