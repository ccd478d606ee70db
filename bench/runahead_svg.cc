#include "bench/runahead_svg.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "bench/svg.h"

namespace kvcake::bench {
namespace {

constexpr double kWidth = 980, kHeight = 440, kTop = 60, kBottom = 60;
constexpr double kPlotLeft = 70, kPlotRight = 520;  // time to the first token
constexpr double kBarsLeft = 700, kBarsRight = 950;
constexpr const char* kShades[] = {"#1b6ca8", "#4f93c4", "#85b6da", "#b9d6ec"};

struct Style {
  const char* method;
  const char* colour;
};
constexpr Style kStyles[] = {{"single", "#222"},   {"tsp", "#c0392b"}, {"zigzag", "#e08e0b"},
                             {"kvr-e", "#7fb3d5"}, {"kvr", "#1b6ca8"}, {"kvr-s", "#2e8b57"}};

// A logarithmic axis.
class Axis {
 public:
  Axis(double low, double high, double from, double to)
      : low_(std::log(low)), high_(std::log(high)), from_(from), to_(to) {}
  double At(double value) const {
    return from_ + (to_ - from_) * (std::log(value) - low_) / std::max(high_ - low_, 1e-9);
  }

 private:
  double low_, high_, from_, to_;
};

}  // namespace

std::string RunaheadPicture::Draw() const {
  double low = 1e30, high = 0;
  for (const Cell& cell : cells_) {
    for (const MethodResult& result : cell.results) {
      low = std::min(low, result.ttft());
      high = std::max(high, result.ttft());
    }
  }
  Svg svg(kWidth, kHeight);
  const CellNames& first = cells_.front().names;
  svg.Text(kPlotLeft, 28,
           fmt::format("{}, {} ranks, attention {}: time to the first token", first.model,
                       first.ranks, first.attention),
           Svg::Anchor::kStart, 16);
  svg.Text(kBarsLeft, 48, "kvr: share of each rank", Svg::Anchor::kStart);
  const Axis x(first.tokens, cells_.back().names.tokens, kPlotLeft + 10, kPlotRight - 10);
  const Axis y(0.8 * low, 1.2 * high, kHeight - kBottom, kTop);
  for (int exponent = -3; exponent <= 4; ++exponent) {
    for (const double mantissa : {1.0, 2.0, 5.0}) {
      const double tick = mantissa * std::pow(10.0, exponent);
      if (tick < 0.8 * low || tick > 1.2 * high) continue;
      svg.Line(kPlotLeft, y.At(tick), kPlotRight, y.At(tick), "#eee");
      svg.Text(kPlotLeft - 8, y.At(tick) + 4, fmt::format("{:g} s", tick), Svg::Anchor::kEnd);
    }
  }
  for (const Cell& cell : cells_) {
    svg.Text(x.At(cell.names.tokens), kHeight - kBottom + 18, fmt::format("{}", cell.names.tokens),
             Svg::Anchor::kMiddle);
  }
  svg.Text((kPlotLeft + kPlotRight) / 2, kHeight - 16, "prompt tokens", Svg::Anchor::kMiddle);
  double legend = kTop;
  for (const Style& style : kStyles) {
    std::vector<std::pair<double, double>> points;
    for (const Cell& cell : cells_) {
      const MethodResult* result = FindMethod(cell.results, style.method);
      if (result != nullptr) points.emplace_back(x.At(cell.names.tokens), y.At(result->ttft()));
    }
    if (points.empty()) continue;
    svg.Polyline(points, style.colour);
    for (const auto& [px, py] : points) svg.Circle(px, py, 3, style.colour);
    svg.Line(kPlotRight + 20, legend, kPlotRight + 44, legend, style.colour, 2);
    svg.Text(kPlotRight + 50, legend + 4, style.method);
    legend += 20;
  }
  const double row = (kHeight - kBottom - kTop) / static_cast<double>(cells_.size());
  for (size_t i = 0; i < cells_.size(); ++i) {
    const MethodResult* kvr = FindMethod(cells_[i].results, "kvr");
    if (kvr == nullptr) continue;
    const double top = kTop + row * static_cast<double>(i);
    svg.Text(kBarsLeft - 8, top + row / 2 + 4, fmt::format("{}", cells_[i].names.tokens),
             Svg::Anchor::kEnd);
    const std::vector<double> shares = kvr->method.partition.fractions();
    double from = kBarsLeft;
    for (size_t rank = 0; rank < shares.size(); ++rank) {
      const double width = shares[rank] * (kBarsRight - kBarsLeft);
      svg.Rect(from, top + row * 0.15, width - 1, row * 0.7, kShades[rank % std::size(kShades)],
               fmt::format("rank {}: {:.3f}", rank, shares[rank]));
      if (width > 30) {
        svg.Text(from + width / 2, top + row / 2 + 4, fmt::format("{:.2f}", shares[rank]),
                 Svg::Anchor::kMiddle, 11, rank % std::size(kShades) < 2 ? "#fff" : "#222");
      }
      from += width;
    }
  }
  return svg.Finish();
}

std::string DrawTimeline(const std::string& title, TimePoint began,
                         const std::vector<RankTimeline>& ranks) {
  constexpr double kLane = 54, kLeft = 150, kRight = 950;
  double whole_s = 0;
  for (const RankTimeline& rank : ranks) {
    whole_s = std::max(whole_s, (rank.done - began).count());
    for (const LayerExchange& layer : rank.layers) {
      if (layer.sent != TimePoint{}) whole_s = std::max(whole_s, (layer.sent - began).count());
    }
  }
  const auto x = [&](TimePoint t) {
    return kLeft + (kRight - kLeft) * std::max(0.0, (t - began).count()) / whole_s;
  };
  const double height = kTop + kLane * static_cast<double>(ranks.size()) + 60;
  Svg svg(kWidth, height);
  svg.Text(20, 28, title, Svg::Anchor::kStart, 16);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankTimeline& rank = ranks[i];
    const double top = kTop + kLane * static_cast<double>(i);
    svg.Text(20, top + 16, fmt::format("rank {}", i));
    svg.Text(20, top + 33, fmt::format("{}..{}", rank.begin, rank.end), Svg::Anchor::kStart, 11,
             "#666");
    svg.Rect(x(began), top, x(rank.layers[0].kv) - x(began), 20, kShades[1], "layer 0: QKV");
    for (size_t l = 0; l < rank.layers.size(); ++l) {
      const LayerExchange& layer = rank.layers[l];
      const char* shade = kShades[l % 2];
      svg.Rect(
          x(layer.kv), top, x(layer.prefix) - x(layer.kv), 20, "#e08e0b",
          fmt::format("layer {}: waits {:.1f} ms", l, 1e3 * (layer.prefix - layer.kv).count()));
      const TimePoint end = l + 1 < rank.layers.size() ? rank.layers[l + 1].kv : rank.done;
      svg.Rect(x(layer.prefix), top, x(end) - x(layer.prefix), 20, shade,
               fmt::format("layer {}: attention, MLP, QKV of the next", l));
      if (layer.sent == TimePoint{}) continue;
      svg.Rect(x(layer.kv), top + 24 + 6 * static_cast<double>(l % 3), x(layer.sent) - x(layer.kv),
               4, "#2e8b57", fmt::format("layer {}: until all of it had gone on", l));
    }
  }
  const double axis = kTop + kLane * static_cast<double>(ranks.size()) + 10;
  for (int tick = 0; tick <= 4; ++tick) {
    const double at = kLeft + (kRight - kLeft) * tick / 4;
    svg.Line(at, kTop, at, axis, "#ddd", 1, true);
    svg.Text(at, axis + 16, fmt::format("{:.3g} s", whole_s * tick / 4), Svg::Anchor::kMiddle, 11);
  }
  const struct {
    const char* colour;
    const char* name;
  } legend[] = {{kShades[0], "compute"}, {"#e08e0b", "wait"}, {"#2e8b57", "send, and pass on"}};
  double at = kLeft;
  for (const auto& entry : legend) {
    svg.Rect(at, axis + 26, 14, 12, entry.colour);
    svg.Text(at + 20, axis + 36, entry.name);
    at += 150;
  }
  return svg.Finish();
}

}  // namespace kvcake::bench
