#include "io/number_lines.h"

#include <algorithm>
#include <sstream>

namespace kvcake {

Result<std::vector<NumberLine>> ParseNumberLines(std::string_view text, std::string_view columns) {
  const auto count = static_cast<size_t>(1 + std::count(columns.begin(), columns.end(), ','));
  std::vector<NumberLine> table;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos || line[first] == '#') continue;
    std::istringstream fields(line);
    std::vector<double> values;
    for (double value; values.size() < count && fields >> value;) values.push_back(value);
    std::string rest;
    if (values.size() < count || fields >> rest) {
      return Fail(ErrorCode::kInvalidArgument, "line {} is not {} numbers: {}", number, count,
                  columns);
    }
    table.push_back({number, std::move(values)});
  }
  if (table.empty()) return Fail(ErrorCode::kInvalidArgument, "it has no line of numbers");
  return table;
}

}  // namespace kvcake
