#include "bench/csv.h"

#include <charconv>
#include <fstream>
#include <sstream>

namespace kvcake::bench {
namespace {

std::vector<std::string> Fields(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream in(line);
  for (std::string field; std::getline(in, field, ',');) fields.push_back(field);
  return fields;
}

}  // namespace

Result<std::vector<CsvRow>> ReadCsv(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return Fail(ErrorCode::kNotFound, "cannot read {}", path);
  const auto header = Fields(line);
  std::vector<CsvRow> rows;
  while (std::getline(in, line)) {
    const auto fields = Fields(line);
    if (fields.size() != header.size()) {
      return Fail(ErrorCode::kInvalidArgument, "{}: '{}' has not the {} columns of its header",
                  path, line, header.size());
    }
    CsvRow row;
    for (size_t i = 0; i < header.size(); ++i) row[header[i]] = fields[i];
    rows.push_back(std::move(row));
  }
  return rows;
}

Result<double> Number(const CsvRow& row, const char* column, std::optional<double> otherwise) {
  const auto it = row.find(column);
  if (it == row.end() && otherwise) return *otherwise;
  double value = 0;
  const std::string text = it == row.end() ? "" : it->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value <= 0) {
    return Fail(ErrorCode::kInvalidArgument, "'{}' is no {}", text, column);
  }
  return value;
}

std::string Text(const CsvRow& row, const char* column, const char* otherwise) {
  const auto it = row.find(column);
  return it == row.end() ? otherwise : it->second;
}

}  // namespace kvcake::bench
