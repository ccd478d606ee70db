// Whether the other end of a TCP connection is still there to take what it was sent.
#pragma once

#include "base/clock.h"

namespace kvcake {

enum class Delivery {
  kAcknowledged,  // all of it; or the kernel does not tell, of a local socket, say
  kUnderWay,      // or the other end has no room, and says so
  kUnanswered,    // for as long, although it was sent again
};

// A machine that has lost its power, or its network, hangs up on nobody, and the kernel sends again
// for a quarter of an hour. Keepalive does not tell: it is for connections where nothing is sent.
Delivery DeliveryOf(int socket, Seconds patience);

}  // namespace kvcake
