#include "cake/trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace kvcake {

nlohmann::json ChromeTrace(const RestoreReport& report) {
  using nlohmann::json;
  std::vector<std::string> lanes = {"compute"};
  for (const TimelineEntry& entry : report.timeline) {
    if (std::find(lanes.begin(), lanes.end(), entry.lane) == lanes.end()) {
      lanes.push_back(entry.lane);
    }
  }
  json events = json::array();
  events.push_back(
      {{"ph", "M"}, {"pid", 1}, {"name", "process_name"}, {"args", {{"name", "kvcake restore"}}}});
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    events.push_back({{"ph", "M"},
                      {"pid", 1},
                      {"tid", lane},
                      {"name", "thread_name"},
                      {"args", {{"name", lane == 0 ? "compute" : "load " + lanes[lane]}}}});
    events.push_back({{"ph", "M"},
                      {"pid", 1},
                      {"tid", lane},
                      {"name", "thread_sort_index"},
                      {"args", {{"sort_index", lane}}}});
  }
  // Queued reads overlap; on one row they are drawn one after the other, as the link delivers them.
  std::vector<TimelineEntry> timeline = report.timeline;
  std::stable_sort(timeline.begin(), timeline.end(),
                   [](const auto& a, const auto& b) { return a.end_s < b.end_s; });
  std::vector<double> drawn_s(lanes.size(), 0);
  for (const TimelineEntry& entry : timeline) {
    const size_t lane = std::find(lanes.begin(), lanes.end(), entry.lane) - lanes.begin();
    const int end = entry.first_token + entry.tokens;
    const auto name = fmt::format("tokens {} to {}", entry.first_token, end - 1);
    const double start_s = std::max(entry.start_s, drawn_s[lane]);
    drawn_s[lane] = entry.end_s;
    // Complete events, in microseconds.
    events.push_back({{"ph", "X"},
                      {"pid", 1},
                      {"tid", lane},
                      {"name", name},
                      {"cat", entry.lane},
                      {"ts", start_s * 1e6},
                      {"dur", (entry.end_s - start_s) * 1e6},
                      {"args",
                       {{"tokens", fmt::format("[{}, {})", entry.first_token, end)},
                        {"outcome", OutcomeName(entry.outcome)}}}});
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

Status WriteChromeTrace(const std::string& path, const RestoreReport& report) {
  std::ofstream trace(path);
  trace << ChromeTrace(report).dump();
  trace.close();
  if (trace) return {};
  return Fail(ErrorCode::kIo, "cannot write {}: {}", path, std::strerror(errno));
}

}  // namespace kvcake
