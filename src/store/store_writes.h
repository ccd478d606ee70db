// Which chunks are worth writing to a store.
#pragma once

#include <optional>
#include <string_view>

namespace kvcake {

class Tier;

// All; those that come up for the second time; none.
enum class StoreWrites { kAlways, kSecondUse, kNever };
std::string_view StoreWritesName(StoreWrites writes);  // "always", "second-use", "never"
std::optional<StoreWrites> StoreWritesFromName(std::string_view name);

// A store, and what of the chunks that are used it is to keep.
struct WrittenStore {
  // Implicit, as a store by itself keeps all.
  WrittenStore(Tier* tier, StoreWrites writes = StoreWrites::kAlways)  // NOLINT
      : tier(tier), writes(writes) {}

  Tier* tier;
  StoreWrites writes;
};

}  // namespace kvcake
