// Whose turn it is among requests that wait, so that no tenant's many hold back another's few.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/sequence.h"

namespace kvcake {

// The places in `waiting` of at most `count` that are to be admitted first, in that order. Whoever
// was preempted goes first. Then a tenant's are in order of arrival, and the next is always of the
// tenant that would have the fewest running; of several such, the one that came first.
std::vector<size_t> AdmissionOrder(const std::deque<std::unique_ptr<Sequence>>& waiting,
                                   std::span<const std::unique_ptr<Sequence>> running,
                                   size_t count);

}  // namespace kvcake
