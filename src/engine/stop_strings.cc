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
  size_t cut = 0, end = std::string::npos;  // of the first to be whole
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t size = stops_[i].size();
    const size_t from = early_ < size ? 0 : early_ - size + 1;  // ends behind early_
    const size_t at = held_.find(stops_[i], from);
    if (at == std::string::npos || at + size >= end) continue;
    cut = at;
    end = at + size;
    found_ = i;
  }
  return found_ ? std::exchange(held_, "").substr(0, cut) : TakeCertain();
}

std::string StopStrings::AppendEarly(std::string_view text) {
  held_ += text;
  early_ = held_.size();
  return TakeCertain();
}

std::string StopStrings::TakeCertain() {
  size_t keep = 0;
  for (const std::string& stop : stops_) keep = std::max(keep, Overlap(held_, stop));
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, certain.size());
  early_ -= std::min(early_, certain.size());
  return certain;
}

std::string StopStrings::Finish() { return std::exchange(held_, ""); }

}  // namespace kvcake
