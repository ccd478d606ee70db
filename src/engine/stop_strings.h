// Cuts streamed text before the first of some stop strings that is whole, wherever the pieces are
// split.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcake {

class StopStrings {
 public:
  // Empty strings are ignored.
  explicit StopStrings(std::vector<std::string> stops);

  // Returns what is now certain to precede any stop string; holds back what may begin one.
  std::string Append(std::string_view text);
  // The same of text that may begin a stop string, and completes none: what it has of whole ones
  // is text. Comes before what is appended.
  std::string AppendEarly(std::string_view text);
  // What was held back and turned out to be text after all.
  std::string Finish();
  bool found() const { return found_.has_value(); }
  // The one that was found; of several that end at one place that which was named first, as with
  // vLLM.
  const std::string& stop() const { return stops_[*found_]; }

 private:
  // What of the held text begins no stop string.
  std::string TakeCertain();

  std::vector<std::string> stops_;
  std::string held_;                  // shorter than the longest stop string
  size_t early_ = 0;                  // so much of its start completes none
  std::optional<size_t> found_ = {};  // which of them
};

}  // namespace kvcake
