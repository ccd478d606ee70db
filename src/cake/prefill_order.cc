#include "cake/prefill_order.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace kvcake {

std::string_view ScheduleName(Schedule schedule) {
  return schedule == Schedule::kFcfs ? "fcfs" : "adaptive";
}

std::optional<Schedule> ScheduleFromName(std::string_view name) {
  for (const Schedule schedule : {Schedule::kAdaptive, Schedule::kFcfs}) {
    if (ScheduleName(schedule) == name) return schedule;
  }
  return std::nullopt;
}

std::vector<PrefillTurn> OrderPrefills(Schedule schedule, const std::vector<PrefillNeed>& needs,
                                       Seconds restore_wait_max) {
  std::vector<PrefillTurn> turns;
  for (int i = 0; i < static_cast<int>(needs.size()); ++i) turns.push_back({.index = i});
  if (schedule == Schedule::kFcfs) return turns;

  const auto fresh = [](const PrefillNeed& need) {
    return !need.restoring || need.fresh_chunks > 0;
  };
  const auto tail = [](const PrefillNeed& need) {
    return !need.restoring && need.fresh_chunks == 0;
  };
  int starved = -1;
  Seconds longest = restore_wait_max;
  bool next = true;  // of the fresh ones
  for (const PrefillTurn& turn : turns) {
    const PrefillNeed& need = needs[turn.index];
    if (tail(need) || (fresh(need) && !std::exchange(next, false))) continue;
    if (need.idle <= longest) continue;
    starved = turn.index;
    longest = need.idle;
  }
  const auto key = [&](const PrefillTurn& turn) {
    const PrefillNeed& need = needs[turn.index];
    const int group = turn.index == starved ? 0 : tail(need) ? 1 : fresh(need) ? 2 : 3;
    const double rank = group == 2   ? need.fresh_s - kPrefillAging * need.age_s
                        : group == 3 ? need.rank
                                     : 0;
    return std::tuple(group, rank, turn.index);
  };
  std::sort(turns.begin(), turns.end(),
            [&](const PrefillTurn& a, const PrefillTurn& b) { return key(a) < key(b); });
  if (std::count_if(needs.begin(), needs.end(), fresh) < 2) return turns;
  for (PrefillTurn& turn : turns) {
    const PrefillNeed& need = needs[turn.index];
    if (need.restoring && fresh(need)) turn.chunks_max = need.fresh_chunks;
  }
  return turns;
}

}  // namespace kvcake
