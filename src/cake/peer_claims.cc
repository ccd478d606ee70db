#include "cake/peer_claims.h"

#include <algorithm>

#include "cake/restorer.h"

namespace kvcake {

bool PeerClaims::MayWait(const ClaimOptions& options, TimePoint now, double slice_s,
                         double turn_s) {
  has_waited_ = true;
  if (waiting_) lost_s_ += (now - *waiting_).count();
  waiting_ = now;
  const double most_s = options.lost_slices * turn_s + options.lost_share * computed_s_;
  if (lost_s_ < most_s) return true;
  waiting_.reset();
  if (!gave_up_at_s_) gave_up_at_s_ = computed_s_;
  // One that has stopped is not ahead of what this process has computed since.
  if (forgave_ || computed_s_ - *gave_up_at_s_ < options.proven_slices * 0.99 * slice_s) {
    return false;
  }
  forgave_ = true;
  lost_s_ = 0;
  waiting_ = now;
  return true;
}

void PeerClaims::Computes(double seconds) {
  waiting_.reset();
  computed_s_ += seconds;
}

// What was gained is not kept to be lost again: a process that stops is given up as soon as ever.
void PeerClaims::ReachedFront(int front, double chunk_s) {
  for (; front_ < front; ++front_) {
    if (states_[front_] == PeerState::kCame) lost_s_ = std::max(0.0, lost_s_ - chunk_s);
  }
}

}  // namespace kvcake
