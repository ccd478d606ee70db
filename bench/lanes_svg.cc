#include "bench/lanes_svg.h"

#include <fmt/core.h>

#include <algorithm>

#include "bench/svg.h"

namespace kvcake::bench {
namespace {

constexpr double kPanelWidth = 280, kPanelHeight = 300, kGap = 24;
constexpr double kLeft = 70, kTop = 70, kBottom = 80;
constexpr const char* kComputeColour = "#e08a3c";
constexpr const char* kLoadColour = "#3c7fe0";

double EndOf(const RestoreReport& report) {
  double end = 0;
  for (const TimelineEntry& entry : report.timeline) end = std::max(end, entry.end_s);
  return end;
}

void DrawPanel(Svg& svg, double left, const RestoreReport& report, double seconds) {
  const double per_token = kPanelHeight / std::max(report.prompt_tokens, 1);
  const double per_second = kPanelWidth / seconds;
  const double bottom = kTop + kPanelHeight;
  svg.Rect(left, kTop, kPanelWidth, kPanelHeight, "#f6f6f6");
  for (const TimelineEntry& entry : report.timeline) {
    if (entry.outcome != Outcome::kPublished) continue;
    const bool compute = entry.lane == "compute";
    const int first = entry.first_token, tokens = entry.tokens;
    const double x = left + entry.start_s * per_second;
    const double width = std::max((entry.end_s - entry.start_s) * per_second, 1.0);
    svg.Rect(x, bottom - (first + tokens) * per_token, width,
             std::max(tokens * per_token - 0.5, 0.5), compute ? kComputeColour : kLoadColour,
             fmt::format("{} tokens {}..{}: {:.1f} to {:.1f} ms", entry.lane, first, first + tokens,
                         entry.start_s * 1e3, entry.end_s * 1e3));
  }
  const double end = EndOf(report);
  svg.Line(left + end * per_second, kTop, left + end * per_second, bottom, "#222", 1, true);
  svg.Text(left + kPanelWidth / 2, kTop - 10,
           fmt::format("{}: {:.0f} ms", PolicyName(report.policy), end * 1e3), Svg::Anchor::kMiddle,
           14);
  for (double share : {0.0, 0.5, 1.0}) {
    svg.Text(left + share * kPanelWidth, bottom + 18,
             fmt::format("{:.0f} ms", share * seconds * 1e3),
             share == 0   ? Svg::Anchor::kStart
             : share == 1 ? Svg::Anchor::kEnd
                          : Svg::Anchor::kMiddle,
             11);
  }
}

}  // namespace

std::string DrawLanes(const std::string& title, const std::vector<RestoreReport>& reports) {
  double seconds = 1e-6;
  for (const RestoreReport& report : reports) seconds = std::max(seconds, EndOf(report));
  const double width = kLeft + reports.size() * (kPanelWidth + kGap);
  Svg svg(width, kTop + kPanelHeight + kBottom);
  svg.Text(kLeft, 28, title, Svg::Anchor::kStart, 17);
  const int tokens = reports.empty() ? 0 : reports.front().prompt_tokens;
  for (double share : {0.0, 0.5, 1.0}) {
    svg.Text(kLeft - 8, kTop + kPanelHeight * (1 - share) + 4,
             fmt::format("{:.0f}", share * tokens), Svg::Anchor::kEnd, 11);
  }
  svg.Text(8, kTop - 10, "token", Svg::Anchor::kStart, 12);
  for (size_t i = 0; i < reports.size(); ++i) {
    DrawPanel(svg, kLeft + i * (kPanelWidth + kGap), reports[i], seconds);
  }
  const double y = kTop + kPanelHeight + 46;
  svg.Rect(kLeft, y, 14, 14, kComputeColour);
  svg.Text(kLeft + 20, y + 12, "computed");
  svg.Rect(kLeft + 110, y, 14, 14, kLoadColour);
  svg.Text(kLeft + 130, y + 12, "loaded: each bar lasts from the request to the last byte");
  return svg.Finish();
}

}  // namespace kvcake::bench
