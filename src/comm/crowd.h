// Whom a new caller takes the place of, where all have been given to callers that have proved
// nothing yet.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "comm/asio.h"

namespace kvcake {

inline constexpr size_t kCallersMax = 64;  // that have proved nothing yet

// The oldest of those from the address that most are from: strangers of one machine are in the way
// of no other's callers. `callers`, of which there are some, have an `address`, the oldest first.
template <typename CallerPtr>
CallerPtr WhoMakesRoom(const std::vector<CallerPtr>& callers) {
  std::map<boost::asio::ip::address, int> count;
  for (const CallerPtr& caller : callers) ++count[caller->address];
  const auto of = [&](const CallerPtr& caller) { return count[caller->address]; };
  return *std::max_element(callers.begin(), callers.end(),
                           [&](const auto& one, const auto& other) { return of(one) < of(other); });
}

}  // namespace kvcake
