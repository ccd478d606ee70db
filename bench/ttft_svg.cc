#include "bench/ttft_svg.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "bench/svg.h"

namespace kvcake::bench {
namespace {

constexpr double kWidth = 760, kHeight = 440, kLeft = 70, kRight = 150, kTop = 50, kBottom = 60;

// Both axes logarithmic.
class Plot {
 public:
  Plot(const std::vector<TtftCell>& cells, const std::string& title)
      : cells_(cells), svg_(kWidth, kHeight) {
    low_ = 1e30;
    for (const TtftCell& cell : cells) {
      low_ = std::min(low_, cell.bound_s());
      for (const auto& times : cell.ttft_s) {
        if (!times.empty()) high_ = std::max(high_, Median(times));
      }
      high_ = std::max(high_, Median(cell.load_s));
    }
    low_ *= 0.8;
    high_ *= 1.2;
    svg_.Text(kLeft, 28, title, Svg::Anchor::kStart, 16);
    Axes();
  }

  template <typename Value>
  void Curve(const char* label, const char* colour, Value value) {
    std::vector<std::pair<double, double>> points;
    for (const TtftCell& cell : cells_) points.emplace_back(X(cell.spec.ratio), Y(value(cell)));
    svg_.Polyline(points, colour);
    for (const auto& [x, y] : points) svg_.Circle(x, y, 3, colour);
    const double y = kTop + 20 * row_++;
    svg_.Line(kWidth - kRight + 15, y, kWidth - kRight + 35, y, colour, 2);
    svg_.Text(kWidth - kRight + 42, y + 4, label);
  }

  std::string Finish() { return svg_.Finish(); }

 private:
  double X(double ratio) const {
    const double first = std::log(cells_.front().spec.ratio),
                 last = std::log(cells_.back().spec.ratio);
    return kLeft +
           (kWidth - kLeft - kRight) * (std::log(ratio) - first) / std::max(last - first, 1e-9);
  }
  double Y(double seconds) const {
    return kTop + (kHeight - kTop - kBottom) * (std::log(high_) - std::log(seconds)) /
                      (std::log(high_) - std::log(low_));
  }

  void Axes() {
    for (const TtftCell& cell : cells_) {
      const double x = X(cell.spec.ratio);
      svg_.Line(x, kTop, x, kHeight - kBottom, "#eee");
      svg_.Text(x, kHeight - kBottom + 18, fmt::format("{:.3g}", cell.spec.ratio),
                Svg::Anchor::kMiddle);
    }
    for (int exponent = -6; exponent <= 6; ++exponent) {
      for (double mantissa : {1.0, 2.0, 5.0}) {
        const double tick = mantissa * std::pow(10.0, exponent);
        if (tick < low_ || tick > high_) continue;
        svg_.Line(kLeft, Y(tick), kWidth - kRight, Y(tick), "#eee");
        svg_.Text(kLeft - 8, Y(tick) + 4, fmt::format("{:g} s", tick), Svg::Anchor::kEnd);
      }
    }
    svg_.Text((kLeft + kWidth - kRight) / 2, kHeight - 16, "load time / compute time",
              Svg::Anchor::kMiddle);
  }

  const std::vector<TtftCell>& cells_;
  Svg svg_;
  double low_ = 0, high_ = 0;
  int row_ = 0;
};

}  // namespace

std::string DrawTtft(const std::vector<TtftCell>& cells, const std::string& title) {
  Plot plot(cells, title);
  plot.Curve("compute-only", "#d9822b", [](const auto& c) { return c.ttft(Policy::kCompute); });
  plot.Curve("load-only", "#2b7bd9", [](const auto& c) { return Median(c.load_s); });
  if (!cells[0].of(Policy::kPublished).empty()) {
    plot.Curve("as published", "#9467bd", [](const auto& c) { return c.ttft(Policy::kPublished); });
  }
  plot.Curve("cake", "#1a9850", [](const auto& c) { return c.ttft(Policy::kCake); });
  plot.Curve("bound", "#999", [](const auto& c) { return c.bound_s(); });
  return plot.Finish();
}

}  // namespace kvcake::bench
