// What one restoration did, and how well.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace kvcake {

// Compute-only and load-only are cake with one lane switched off. Published is Cake's Algorithm 1:
// both lanes go on until they meet, and nothing is predicted.
enum class Policy { kCake, kCompute, kLoad, kPublished };
std::string_view PolicyName(Policy policy);  // "cake", "compute", "load", "cake-published"
std::optional<Policy> PolicyFromName(std::string_view name);

enum class Outcome { kPublished, kFailed, kLate };
std::string_view OutcomeName(Outcome outcome);

// One slice or one read, in seconds from the start of the restoration.
struct TimelineEntry {
  std::string lane;  // "compute" or the tier's name
  int first_token = 0;
  int tokens = 0;
  double start_s = 0;
  double end_s = 0;
  Outcome outcome = Outcome::kPublished;
};

struct RestoreReport {
  // Both lists are bounded; what did not fit is counted.
  static constexpr size_t kTimelineMax = 16384;
  static constexpr size_t kReasonsMax = 64;

  Policy policy = Policy::kCake;
  int chunk_tokens = 0;
  int prompt_tokens = 0;
  int tokens_computed = 0;                   // the prompt's last part included
  std::map<std::string, int> tokens_loaded;  // by tier
  int tokens_reused = 0;                     // found in memory, or restored by another request
  int chunks_failed = 0;                     // loads that ended without a chunk
  // The lossy codecs that loaded chunks may have gone through, as the keys' identity has them
  // (Restorer::Options); empty: loaded is as computed.
  std::string lossy = {};
  int chunks_mixed_path = 0;  // loaded chunks that another numeric path than ours has computed
  int meeting_token = 0;      // the first loaded token; prompt_tokens if none was
  double bound_s = 0;         // best split of the fitted curves; 0: not enough is known
  double efficiency = 0;      // bound_s / actual; 0: unknown
  double predicted_s = 0;  // when all was to be resident, by the first plan that knew the costs; 0
  double restored_s = 0;   // when it was
  int slices = 0;          // computed with a prediction
  double slice_error = 0;  // mean of |predicted / took - 1| of those
  int turns = 0;           // that the engine has asked for, and
  double planning_s = 0;   // the time that it spent in them and in telling what it had computed
  std::vector<TimelineEntry> timeline;
  std::vector<std::string> reasons;
  uint64_t timeline_dropped = 0;
  uint64_t reasons_dropped = 0;

  void AddTimeline(TimelineEntry entry);
  void AddReason(std::string reason);  // a repetition of the last one is not added
  // The engine knows the time to first token; it fills in the efficiency. What was achieved bounds
  // the bound.
  void SetActual(Seconds ttft);
  int loaded() const;  // tokens, from every tier
  nlohmann::json ToJson() const;
};

}  // namespace kvcake
