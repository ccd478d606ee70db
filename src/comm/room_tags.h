// The tags of what this room's own parts say, in one place, so that no two have the same.
#pragma once

#include "comm/comm.h"

namespace kvcake {

enum RoomTag : int {
  kHelloTag = kTagLimit,  // handshake.cc
  kProbeTag,              // survey.cc, and the next two
  kEchoTag,
  kRecordTag,
  kWatchTag,  // watch.cc: nobody sends anything with it
};

}  // namespace kvcake
