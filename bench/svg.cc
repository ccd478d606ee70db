#include "bench/svg.h"

#include <fmt/core.h>

namespace kvcake::bench {
namespace {

std::string Escape(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace

Svg::Svg(double width, double height) : width_(width), height_(height) {}

void Svg::Rect(double x, double y, double width, double height, std::string_view fill,
               std::string_view tooltip) {
  body_ += fmt::format(R"(<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" fill="{}">)"
                       "<title>{}</title></rect>\n",
                       x, y, width, height, fill, Escape(tooltip));
}

void Svg::Line(double x1, double y1, double x2, double y2, std::string_view stroke, double width,
               bool dashed) {
  body_ += fmt::format(
      R"(<line x1="{:.2f}" y1="{:.2f}" x2="{:.2f}" y2="{:.2f}" stroke="{}" stroke-width="{}"{}/>)"
      "\n",
      x1, y1, x2, y2, stroke, width, dashed ? R"( stroke-dasharray="4 3")" : "");
}

void Svg::Polyline(const std::vector<std::pair<double, double>>& points, std::string_view stroke) {
  std::string list;
  for (const auto& [x, y] : points) list += fmt::format("{:.2f},{:.2f} ", x, y);
  body_ += fmt::format(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>)"
                       "\n",
                       list, stroke);
}

void Svg::Circle(double x, double y, double radius, std::string_view fill) {
  body_ += fmt::format(R"(<circle cx="{:.2f}" cy="{:.2f}" r="{}" fill="{}"/>)"
                       "\n",
                       x, y, radius, fill);
}

void Svg::Text(double x, double y, std::string_view text, Anchor anchor, double size,
               std::string_view fill) {
  const char* anchors[] = {"start", "middle", "end"};
  body_ += fmt::format(
      R"(<text x="{:.2f}" y="{:.2f}" text-anchor="{}" font-size="{}" fill="{}">{}</text>)"
      "\n",
      x, y, anchors[static_cast<int>(anchor)], size, fill, Escape(text));
}

std::string Svg::Finish() const {
  return fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" )"
                     R"(viewBox="0 0 {0:.0f} {1:.0f}" font-family="sans-serif">)"
                     "\n"
                     R"(<rect width="100%" height="100%" fill="white"/>)"
                     "\n",
                     width_, height_) +
         body_ + "</svg>\n";
}

}  // namespace kvcake::bench
