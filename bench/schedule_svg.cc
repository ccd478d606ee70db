#include "bench/schedule_svg.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "bench/svg.h"

namespace kvcake::bench {
namespace {

constexpr double kLeft = 60, kTop = 60, kWidth = 820, kHeight = 200, kGap = 60;

struct Kind {
  const char* name;
  const char* colour;
  int StepRecord::*tokens;
};
constexpr std::array kKinds = {
    Kind{"decode", "#3a9d5d", &StepRecord::decoded},
    Kind{"prefill of what is stored nowhere", "#e08a3c", &StepRecord::fresh},
    Kind{"prefill that restores", "#3c7fe0", &StepRecord::restored},
};

}  // namespace

std::string DrawSteps(const std::string& title, const std::vector<StepPanel>& panels) {
  double seconds = 1e-6;
  int tokens = 1;
  for (const StepPanel& panel : panels) {
    for (const StepRecord& step : panel.steps) {
      seconds = std::max(seconds, (step.began - panel.began + step.took).count());
      tokens = std::max(tokens, step.decoded + step.fresh + step.restored);
    }
  }
  Svg svg(kLeft + kWidth + 20, kTop + static_cast<double>(panels.size()) * (kHeight + kGap) + 30);
  svg.Text(kLeft, 24, title, Svg::Anchor::kStart, 16);
  double top = kTop;
  for (const StepPanel& panel : panels) {
    const double bottom = top + kHeight;
    svg.Rect(kLeft, top, kWidth, kHeight, "#f6f6f6");
    svg.Text(kLeft, top - 8, panel.title, Svg::Anchor::kStart, 14);
    for (const StepRecord& step : panel.steps) {
      const double start_s = (step.began - panel.began).count();
      double y = bottom;
      for (const Kind& kind : kKinds) {
        const double height = kHeight * (step.*kind.tokens) / tokens;
        if (height == 0) continue;
        y -= height;
        svg.Rect(kLeft + kWidth * start_s / seconds, y,
                 std::max(0.5, kWidth * step.took.count() / seconds - 0.5), height, kind.colour,
                 fmt::format("{:.3f} s: {} tokens of {}", start_s, step.*kind.tokens, kind.name));
      }
    }
    const double x = kLeft + kWidth * panel.restored_s / seconds;
    svg.Line(x, top, x, bottom, "#222", 1, /*dashed=*/true);
    svg.Text(kLeft - 6, top + 10, fmt::format("{}", tokens), Svg::Anchor::kEnd, 11);
    svg.Text(kLeft - 6, bottom, "0", Svg::Anchor::kEnd, 11);
    for (const double share : {0.0, 0.5, 1.0}) {
      svg.Text(kLeft + share * kWidth, bottom + 16, fmt::format("{:.2f} s", share * seconds),
               share == 0   ? Svg::Anchor::kStart
               : share == 1 ? Svg::Anchor::kEnd
                            : Svg::Anchor::kMiddle,
               11);
    }
    top += kHeight + kGap;
  }
  double x = kLeft;
  for (const Kind& kind : kKinds) {
    svg.Rect(x, top - 20, 12, 12, kind.colour);
    svg.Text(x + 18, top - 10, kind.name);
    x += 60 + 7.0 * static_cast<double>(std::string_view(kind.name).size());
  }
  svg.Text(kLeft, top + 12, "dashed line: the restored prompt's first token");
  return svg.Finish();
}

}  // namespace kvcake::bench
