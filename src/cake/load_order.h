// Which of several restorations the load lanes serve first.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvcake {

enum class LoadOrder {
  kSrpt,  // the shortest remaining time first, with aging
  kFifo,  // in order of arrival
  kFair,  // a read for each in turn
};
std::string_view LoadOrderName(LoadOrder order);  // "srpt", "fifo", "fair"
std::optional<LoadOrder> LoadOrderFromName(std::string_view name);

// A restoration, as the order sees it.
struct LoadClaimant {
  double remaining_s = 0;  // of loading all that it lacks
  double opened_s = 0;     // when, by a clock that all share
  uint64_t serial = 0;     // in the order of opening
  uint64_t last_read = 0;  // in the order of issue, over all restorations; 0: none yet
};

// Lower is served first. With kSrpt every second of age is worth `aging` of remaining time: one
// that has waited for remaining_s / aging is ahead of whatever comes after it, however short that
// is. All age alike, so that ranks stay what they are as time passes.
double LoadRank(LoadOrder order, const LoadClaimant& claimant, double aging);

}  // namespace kvcake
