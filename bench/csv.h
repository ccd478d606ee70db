// The papers' tables, as they lie in bench/papers.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvcake::bench {

using CsvRow = std::map<std::string, std::string>;  // by column

// A header and its rows; no quotes. kNotFound or kInvalidArgument names the file.
Result<std::vector<CsvRow>> ReadCsv(const std::string& path);
// What a row says of a column, a positive number, or what its table holds constant.
Result<double> Number(const CsvRow& row, const char* column, std::optional<double> otherwise = {});
std::string Text(const CsvRow& row, const char* column, const char* otherwise);

}  // namespace kvcake::bench
