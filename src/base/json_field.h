// A value of JSON that others wrote together with its place there, so that errors name the file and
// the field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvcake {

class JsonField {
 public:
  // The root; the JSON outlives every field of it. `source` names the text in errors; they begin
  // with the field where it is empty.
  JsonField(const nlohmann::json& value, std::string source)
      : value_(&value), source_(std::move(source)) {}

  const nlohmann::json& value() const { return *value_; }
  bool null() const;                                 // or absent
  bool absent() const;                               // no member of that name, no such element
  const std::string& path() const { return path_; }  // "model.merges[3]"; empty for the root
  // Absent where this is no object that has the member, no array that is as long.
  JsonField operator[](std::string_view member) const;
  JsonField operator[](size_t element) const;
  // "SOURCE: PATH"
  std::string Place() const { return fmt::format("{}: {}", source_, path_); }
  // The same value as a root: errors say "SOURCE: PATH: FIELD what".
  JsonField AsRoot() const { return {*value_, Place()}; }

  // kInvalidArgument where it is something else, or beyond the bounds. With `absent`, null counts
  // as that.
  Result<std::string> Text() const;
  Result<std::string> Text(std::string_view absent, size_t bytes_max = std::string::npos) const;
  Result<bool> Flag() const;
  Result<bool> Flag(bool absent) const;
  Result<int> Int(int min, int max, std::optional<int> absent = {}) const;
  Result<double> Number(double min, double max, std::optional<double> absent = {}) const;
  Result<size_t> ArraySize() const;
  Status CheckObject() const;

  // kInvalidArgument: "SOURCE: PATH what".
  tl::unexpected<Error> Bad(std::string_view what) const;
  // kInvalidArgument: "SOURCE: PATH is VALUE; it must be ..." or that it is missing.
  tl::unexpected<Error> Not(std::string_view expected) const;
  // kUnsupported: "SOURCE: PATH what".
  tl::unexpected<Error> Unsupported(std::string_view what) const;
  // kUnsupported: "SOURCE: PATH what is not supported".
  tl::unexpected<Error> Refuse(std::string_view what) const;
  // The value, short enough for a message.
  std::string Show() const;

 private:
  JsonField(const nlohmann::json& value, std::string source, std::string path)
      : value_(&value), source_(std::move(source)), path_(std::move(path)) {}
  std::string About(std::string_view what) const;

  const nlohmann::json* value_;
  std::string source_;
  std::string path_;
};

}  // namespace kvcake
