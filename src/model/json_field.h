// A value in a JSON file together with its place there, so that errors name the file and the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvcake {

class JsonField {
 public:
  // The root. The JSON outlives every field of it.
  JsonField(const nlohmann::json& value, std::string file)
      : value_(&value), file_(std::move(file)) {}

  const nlohmann::json& value() const { return *value_; }
  bool null() const { return value_->is_null(); }  // or absent
  // Null where this is no object that has the member, no array that is as long.
  JsonField operator[](std::string_view member) const;
  JsonField operator[](size_t element) const;

  // kInvalidArgument where it is something else. With `absent`, null counts as that.
  Result<std::string> Text() const;
  Result<std::string> Text(std::string_view absent) const;
  Result<bool> Flag() const;
  Result<bool> Flag(bool absent) const;
  Result<int32_t> Number(int32_t max) const;  // from 0
  Result<size_t> ArraySize() const;
  Status CheckObject() const;

  // kInvalidArgument: "FILE: FIELD what".
  tl::unexpected<Error> Bad(std::string_view what) const;
  // kUnsupported: "FILE: FIELD what is not supported".
  tl::unexpected<Error> Refuse(std::string_view what) const;
  // The value, short enough for a message.
  std::string Show() const;

 private:
  JsonField(const nlohmann::json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}
  tl::unexpected<Error> BadType(std::string_view expected) const;

  const nlohmann::json* value_;
  std::string file_;
  std::string path_;  // "model.merges[3]"; empty for the root
};

}  // namespace kvcake
