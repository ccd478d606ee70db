// Asks stores which chunks they hold, and waits for the answer.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "store/tier.h"

namespace kvcake {

// Whether any of the stores holds each key, as far as they have said after `patience`.
std::vector<bool> LookInStores(std::span<const std::unique_ptr<Tier>> stores,
                               std::span<const ChunkKey> keys, Seconds patience);

}  // namespace kvcake
