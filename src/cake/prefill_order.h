// Who gets the prefill tokens of a step first.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace kvcake {

enum class Schedule {
  // The last few tokens of prompts, in order of arrival; then what nothing has stored, what is done
  // soonest first; then restorations: what they do not get they make up for by loading (Cake's
  // adaptive scheduling).
  kAdaptive,
  kFcfs,  // in order of arrival, restoring or not
};
std::string_view ScheduleName(Schedule schedule);  // "adaptive", "fcfs"
std::optional<Schedule> ScheduleFromName(std::string_view name);

// A sequence whose prompt is not done.
struct PrefillNeed {
  int fresh_chunks = 0;    // full chunks from where it is on that no loading can bring
  bool restoring = false;  // false: its full chunks are there, or are not wanted
  double fresh_s = 0;      // that these take to compute; 0: nothing is known of it yet
  double age_s = 0;        // since it was asked for
  Seconds idle{0};         // since it came any further
  double rank = 0;         // of restorations: the lowest first
};
// Every second of age is worth this much of fresh_s: a prompt that has waited four times as long as
// it takes is ahead of whatever comes after it.
inline constexpr double kPrefillAging = 0.25;

struct PrefillTurn {
  int index = 0;  // into the needs
  // It leaves the rest of its tokens to others, who need them more.
  std::optional<int> chunks_max = {};
};

// needs: in order of arrival. All of them, in the order of their turns. With kAdaptive, of the
// restorations that are idle for longer than restore_wait_max, and the first prompt of those that
// nothing but compute can help, the one that is so for the longest has its turn before all others:
// however slow its loads are, and whatever comes, it comes further.
std::vector<PrefillTurn> OrderPrefills(Schedule schedule, const std::vector<PrefillNeed>& needs,
                                       Seconds restore_wait_max);

}  // namespace kvcake
