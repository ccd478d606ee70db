#include "store/store_writes.h"

namespace kvcake {

std::string_view StoreWritesName(StoreWrites writes) {
  switch (writes) {
    case StoreWrites::kAlways:
      return "always";
    case StoreWrites::kSecondUse:
      return "second-use";
    case StoreWrites::kNever:
      return "never";
  }
  return "always";
}

std::optional<StoreWrites> StoreWritesFromName(std::string_view name) {
  for (StoreWrites writes : {StoreWrites::kAlways, StoreWrites::kSecondUse, StoreWrites::kNever}) {
    if (StoreWritesName(writes) == name) return writes;
  }
  return std::nullopt;
}

}  // namespace kvcake
