#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "bench/svg.h"
#include "bench/traffic_report.h"

namespace kvcake::bench {
namespace {

constexpr double kWidth = 760, kHeight = 420, kLeft = 75, kRight = 150, kTop = 50, kBottom = 60;
constexpr double kWarmShare = 0.5, kColdShare = 0.05;

struct Kind {
  const char* name;
  const char* colour;
};
constexpr std::array<Kind, 5> kKinds = {{{"cached: most of it", "#2b7bd9"},
                                         {"cached: some of it", "#1a9850"},
                                         {"not cached", "#d9822b"},
                                         {"answered", "#777"},
                                         {"failed", "#d62728"}}};

const Kind& KindOf(const Answer& answer) {
  if (!answer.ok()) return kKinds[4];
  if (!answer.cached_tokens || answer.prompt_tokens.value_or(0) < 1) return kKinds[3];
  const double share = static_cast<double>(*answer.cached_tokens) / *answer.prompt_tokens;
  return kKinds[share >= kWarmShare ? 0 : share >= kColdShare ? 1 : 2];
}

// The least of 1, 2 and 5 times a power of ten that cuts `range` into at most six.
double TickOf(double range) {
  const double power = std::pow(10.0, std::floor(std::log10(range / 6)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (power * factor * 6 >= range) return power * factor;
  }
  return power * 10;
}

}  // namespace

// Time is linear, times to first token are logarithmic; what failed stands at the bottom.
std::string DrawTraffic(const TrafficResult& result, const std::string& title) {
  double low = 1e30, high = 0, last_s = 1e-3;
  for (const TrafficAnswer& one : result.answers) {
    last_s = std::max(last_s, one.sent_s);
    if (!one.answer.ok()) continue;
    low = std::min(low, std::max(one.ttft_s(), 1e-6));
    high = std::max(high, one.ttft_s());
  }
  if (high <= 0) low = 1e-3, high = 1;
  low /= 1.3;
  high *= 1.3;
  const auto x = [&](double s) { return kLeft + (kWidth - kLeft - kRight) * s / last_s; };
  const auto y = [&](double s) {
    return kTop + (kHeight - kTop - kBottom) * std::log(high / s) / std::log(high / low);
  };
  Svg svg(kWidth, kHeight);
  svg.Text(kLeft, 24, title, Svg::Anchor::kStart, 16);
  svg.Text(kLeft - 8, kTop - 8, "first token after", Svg::Anchor::kMiddle, 12);
  const double step = TickOf(last_s);
  for (int i = 0; i * step <= last_s; ++i) {
    svg.Line(x(i * step), kTop, x(i * step), kHeight - kBottom, "#eee");
    svg.Text(x(i * step), kHeight - kBottom + 18, fmt::format("{:g} s", i * step),
             Svg::Anchor::kMiddle);
  }
  for (int exponent = -6; exponent <= 6; ++exponent) {
    for (const double mantissa : {1.0, 2.0, 5.0}) {
      const double tick = mantissa * std::pow(10.0, exponent);
      if (tick < low || tick > high) continue;
      svg.Line(kLeft, y(tick), kWidth - kRight, y(tick), "#eee");
      svg.Text(kLeft - 8, y(tick) + 4, fmt::format("{:g} s", tick), Svg::Anchor::kEnd);
    }
  }
  svg.Text((kLeft + kWidth - kRight) / 2, kHeight - 16, "sent after", Svg::Anchor::kMiddle);
  std::array<int, kKinds.size()> counts = {};
  for (const TrafficAnswer& one : result.answers) {
    const Kind& kind = KindOf(one.answer);
    ++counts[&kind - kKinds.data()];
    svg.Circle(x(one.sent_s), one.answer.ok() ? y(std::max(one.ttft_s(), low)) : kHeight - kBottom,
               3, kind.colour);
  }
  double row = kTop;
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (counts[i] == 0) continue;
    svg.Circle(kWidth - kRight + 18, row, 4, kKinds[i].colour);
    svg.Text(kWidth - kRight + 28, row + 4, kKinds[i].name);
    row += 20;
  }
  return svg.Finish();
}

}  // namespace kvcake::bench
