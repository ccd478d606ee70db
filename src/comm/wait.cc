#include "comm/wait.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace kvcake {
namespace {

constexpr Seconds kWaitMax(1e9);

}  // namespace

struct TransferWait::State {
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex.
  int open = 0;
  Status status;

  void Fail(Error why) {
    if (status) status = tl::unexpected(std::move(why));
  }
};

TransferWait::TransferWait() : state_(std::make_shared<State>()) {}

Comm::Done TransferWait::Add() {
  const std::lock_guard lock(state_->mutex);
  ++state_->open;
  return [state = state_](Status status) {
    const std::lock_guard lock(state->mutex);
    --state->open;
    if (!status) state->Fail(std::move(status.error()));
    state->changed.notify_all();
  };
}

Status TransferWait::Wait(TimePoint deadline, std::string_view what) const {
  std::unique_lock lock(state_->mutex);
  // Far deadlines have no place among the clock's nanoseconds.
  const auto until = std::chrono::time_point_cast<std::chrono::steady_clock::duration>(
      std::min(deadline, Clock::Real().Now() + kWaitMax));
  const bool ended =
      state_->changed.wait_until(lock, until, [&] { return state_->open == 0 || !state_->status; });
  if (ended) return state_->status;
  return Fail(ErrorCode::kDeadline, "{}: {} transfers have not ended in time", what, state_->open);
}

void TransferWait::Cancel(Error why) {
  const std::lock_guard lock(state_->mutex);
  state_->Fail(std::move(why));
  state_->changed.notify_all();
}

bool TransferWait::Done() const {
  const std::lock_guard lock(state_->mutex);
  return state_->open == 0;
}

}  // namespace kvcake
