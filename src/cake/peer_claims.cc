#include "cake/peer_claims.h"

#include <algorithm>

#include "cake/restorer.h"

namespace kvcake {

void PeerClaims::Decide(const ClaimOptions& options, TimePoint now, double finish_s,
                        double slice_s) {
  decided_ = true;
  active_ = finish_s >= options.prompt_min.count();
  done_alone_ = now + Seconds(finish_s);
  late_max_ = Seconds(std::max(options.late_share * finish_s, options.late_slices * slice_s));
}

bool PeerClaims::MayWait(const ClaimOptions& options, TimePoint now, double finish_s,
                         double slice_s, TimePoint progressed) {
  if (gave_up_) return false;
  if (!has_waited_) waiting_since_ = now;
  has_waited_ = true;
  const TimePoint since = std::max(progressed, waiting_since_);
  const bool late = now + Seconds(finish_s) > done_alone_ + late_max_;
  const bool stalled = now - since > Seconds(options.stall_slices * slice_s);
  gave_up_ = late || stalled;
  return !gave_up_;
}

}  // namespace kvcake
