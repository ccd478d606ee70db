// A decorator that makes each link slower, as another network would be: for emulated GPUs, whose
// link rates are scaled down by the caller, and for noisy networks.
//
// The messages from this rank to another one pass their link one after the other, whatever their
// tags: each holds it for bytes / rate, and arrives the latency later, when the inner transfer
// starts; so the inner Comm should be much faster than the link. A send ends when the inner one
// does: nothing is copied to be on the way. Times are kept on an absolute schedule: late wake-ups
// never add up. Receives are the inner Comm's: decorate every rank.
#pragma once

#include <map>
#include <memory>

#include "comm/comm.h"
#include "comm/link_noise.h"

namespace kvcake {

struct LinkShape {
  double rate_bytes_per_s = 0;  // must be positive
  Seconds latency{0};
};

struct ShapedCommOptions {
  LinkShape link;
  std::map<int, LinkShape> link_to = {};  // to the ranks whose links are not like that
  LinkNoise noise = {};
  TimePoint epoch = {};  // of the noise, on Clock::Real(): the same for every rank
};

std::unique_ptr<Comm> NewShapedComm(std::unique_ptr<Comm> inner, const ShapedCommOptions& options);

}  // namespace kvcake
