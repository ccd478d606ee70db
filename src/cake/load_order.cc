#include "cake/load_order.h"

namespace kvcake {

std::string_view LoadOrderName(LoadOrder order) {
  switch (order) {
    case LoadOrder::kSrpt:
      return "srpt";
    case LoadOrder::kFifo:
      return "fifo";
    case LoadOrder::kFair:
      return "fair";
  }
  return "unknown";
}

std::optional<LoadOrder> LoadOrderFromName(std::string_view name) {
  for (const LoadOrder order : {LoadOrder::kSrpt, LoadOrder::kFifo, LoadOrder::kFair}) {
    if (LoadOrderName(order) == name) return order;
  }
  return std::nullopt;
}

double LoadRank(LoadOrder order, const LoadClaimant& claimant, double aging) {
  switch (order) {
    case LoadOrder::kSrpt:
      return claimant.remaining_s + aging * claimant.opened_s;
    case LoadOrder::kFifo:
      return static_cast<double>(claimant.serial);
    case LoadOrder::kFair:
      return static_cast<double>(claimant.last_read);
  }
  return 0;
}

}  // namespace kvcake
