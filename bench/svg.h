// Just enough SVG for the pictures the benches draw.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcake::bench {

// Coordinates are pixels from the top left.
class Svg {
 public:
  enum class Anchor { kStart, kMiddle, kEnd };

  Svg(double width, double height);
  void Rect(double x, double y, double width, double height, std::string_view fill,
            std::string_view tooltip = {});
  void Line(double x1, double y1, double x2, double y2, std::string_view stroke, double width = 1,
            bool dashed = false);
  void Polyline(const std::vector<std::pair<double, double>>& points, std::string_view stroke);
  void Circle(double x, double y, double radius, std::string_view fill);
  void Text(double x, double y, std::string_view text, Anchor anchor = Anchor::kStart,
            double size = 13, std::string_view fill = "#222");
  std::string Finish() const;

 private:
  double width_, height_;
  std::string body_;
};

}  // namespace kvcake::bench
