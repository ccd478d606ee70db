// After the handshake: what the leader of a chain learns of its ranks and of the links between
// them.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/comm.h"

namespace kvcake {

struct Survey {
  std::vector<std::string> machines = {};  // of every rank, as it calls itself
  // Describe the slowest link from a rank to the next, each at its best: half a round trip of a
  // short message, and what a message of some MB adds to it.
  double latency_s = 0;
  double bytes_per_s = 0;
};

inline constexpr size_t kMachineBytesMax = 200;

// Every rank calls it once, at the same point, with its own machine's name (cut to
// kMachineBytesMax); the last gets the survey, the others an empty one. Takes some ms for each link
// of a fast network, one link after the other. kDeadline, or the error of the transfers.
[[nodiscard]] Result<Survey> SurveyRanks(Comm& comm, const std::string& machine, Seconds timeout);

}  // namespace kvcake
