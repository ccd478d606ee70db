#include "cake/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvcake {

std::string_view PolicyName(Policy policy) {
  switch (policy) {
    case Policy::kCake:
      return "cake";
    case Policy::kCompute:
      return "compute";
    case Policy::kLoad:
      return "load";
    case Policy::kPublished:
      return "cake-published";
  }
  return "cake";
}

std::optional<Policy> PolicyFromName(std::string_view name) {
  for (Policy policy : {Policy::kCake, Policy::kCompute, Policy::kLoad, Policy::kPublished}) {
    if (PolicyName(policy) == name) return policy;
  }
  return std::nullopt;
}

std::string_view OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPublished:
      return "published";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kLate:
      return "late";
  }
  return "failed";
}

void RestoreReport::AddTimeline(TimelineEntry entry) {
  if (timeline.size() >= kTimelineMax) {
    ++timeline_dropped;
  } else {
    timeline.push_back(std::move(entry));
  }
}

void RestoreReport::AddReason(std::string reason) {
  if (!reasons.empty() && reasons.back() == reason) return;
  if (reasons.size() >= kReasonsMax) {
    ++reasons_dropped;
  } else {
    reasons.push_back(std::move(reason));
  }
}

void RestoreReport::SetActual(Seconds ttft) {
  bound_s = std::min(bound_s, ttft.count());
  efficiency = ttft.count() > 0 ? bound_s / ttft.count() : 0;
}

int RestoreReport::loaded() const {
  int sum = 0;
  for (const auto& [tier, tokens] : tokens_loaded) sum += tokens;
  return sum;
}

nlohmann::json RestoreReport::ToJson() const {
  nlohmann::json loaded = nlohmann::json::object();
  for (const auto& [tier, tokens] : tokens_loaded) loaded[tier] = tokens;
  return {{"policy", PolicyName(policy)},
          {"tokens_computed", tokens_computed},
          {"tokens_loaded", std::move(loaded)},
          {"tokens_reused", tokens_reused},
          {"chunks_failed", chunks_failed},
          {"chunks_mixed_path", chunks_mixed_path},
          {"lossy", lossy},
          {"meeting_token", meeting_token},
          {"bound_s", bound_s},
          {"bound_estimated", true},
          {"efficiency", efficiency},
          {"predicted_s", predicted_s},
          {"restored_s", restored_s},
          {"slices_predicted", slices},
          {"slice_error", slice_error},
          {"turns", turns},
          {"planning_us_per_turn", turns > 0 ? 1e6 * planning_s / turns : 0},
          {"reasons", reasons},
          {"reasons_dropped", reasons_dropped}};
}

}  // namespace kvcake
