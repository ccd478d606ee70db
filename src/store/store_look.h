// Asks stores which chunks they hold, and waits for the answer.
#pragma once

#include <span>
#include <vector>

#include "base/clock.h"
#include "store/tier.h"

namespace kvcake {

struct StoreLook {
  std::vector<bool> held;  // each key: by any of the stores
  bool complete = true;    // all stores have answered; else it is as far as they have
};

// Waits for `patience` at most. held: what is known to be held; stores are not asked for it.
StoreLook LookInStores(std::span<Tier* const> stores, std::span<const ChunkKey> keys,
                       std::vector<bool> held, Seconds patience);

// The same of all keys, for those who have to be sure: a store that can be asked is, even for what
// it has taken, as it may have dropped that since.
StoreLook AskStores(std::span<Tier* const> stores, std::span<const ChunkKey> keys,
                    Seconds patience);

}  // namespace kvcake
