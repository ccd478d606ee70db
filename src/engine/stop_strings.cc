#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

namespace kvcake {
namespace {

// The length of the longest end of `text` that begins `stop`.
size_t Overlap(std::string_view text, std::string_view stop) {
  size_t length = std::min(text.size(), stop.size() - 1);
  while (length > 0 && !text.ends_with(stop.substr(0, length))) --length;
  return length;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, "");
}

std::string StopStrings::Append(std::string_view text) {
  if (found_) return "";
  held_ += text;
  size_t cut = std::string::npos;
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    cut = std::min(cut, held_.find(stop));
    keep = std::max(keep, Overlap(held_, stop));
  }
  found_ = cut != std::string::npos;
  std::string out = held_.substr(0, found_ ? cut : held_.size() - keep);
  held_.erase(0, found_ ? held_.size() : out.size());
  return out;
}

std::string StopStrings::Finish() { return std::exchange(held_, ""); }

}  // namespace kvcake
