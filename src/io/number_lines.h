// Small tables of numbers that people write.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvcake {

struct NumberLine {
  int number = 0;  // in the text, from 1
  std::vector<double> values;
};

// Lines of as many numbers as `columns` names, separated by commas there and by spaces in the text.
// Blank lines and those that begin with # are passed over. kInvalidArgument names the line, or says
// that there is none.
Result<std::vector<NumberLine>> ParseNumberLines(std::string_view text, std::string_view columns);

}  // namespace kvcake
