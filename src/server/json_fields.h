// The fields of a JSON object that a client sent. The first that is not as it must be is
// remembered, and the rest may be read as if nothing had happened: a request is read in one go, and
// checked at the end.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace kvcake {

class JsonFields {
 public:
  // `path` goes before names in errors: "messages[0]." The object outlives it. What is no object
  // is an error.
  explicit JsonFields(const nlohmann::json& object, std::string path = "");

  // Each leaves *out alone where the field is absent or null.
  void Read(std::string_view name, bool* out);
  void Read(std::string_view name, std::string* out, size_t bytes_max);
  // From `least` to `most`; with `above`, `least` itself is refused.
  void Read(std::string_view name, double least, double most, double* out, bool above = false);
  void Read(std::string_view name, int least, int most, int* out);
  void Read(std::string_view name, int least, int most, std::optional<int>* out);
  // A string or an array of strings.
  void Read(std::string_view name, size_t count_max, size_t bytes_max,
            std::vector<std::string>* out);
  void Read(std::string_view name, size_t count_max, std::vector<int32_t>* out);
  // Of a value that goes by this name.
  void Read(std::string_view name, const nlohmann::json& value, size_t count_max,
            std::vector<int32_t>* out);
  // Any integer of 64 bits, signed or not.
  void Read(std::string_view name, std::optional<uint64_t>* out);
  // Null where absent.
  const nlohmann::json& operator[](std::string_view name) const;

  std::string Path(std::string_view name) const { return path_ + std::string(name); }
  // Notes an error, unless there is one already.
  void Fail(std::string_view name, std::string_view what);
  void Fail(ApiError error);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const nlohmann::json& object_;
  const std::string path_;
  std::optional<ApiError> error_;
};

}  // namespace kvcake
