// The fields of a JSON object that a client sent. The first that is not as it must be is
// remembered, and the rest may be read as if nothing had happened: a request is read in one go, and
// checked at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_field.h"
#include "server/api_error.h"

namespace kvcake {

class RequestFields {
 public:
  // What is no object is an error.
  explicit RequestFields(JsonField object);

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
  // Token ids.
  void Read(std::string_view name, size_t count_max, std::vector<int32_t>* out);
  // The same of a value that goes by this name.
  void Read(std::string_view name, const JsonField& value, size_t count_max,
            std::vector<int32_t>* out);
  // Any integer of 64 bits, signed or not. Like those above it may be written with a point (7.0).
  void Read(std::string_view name, std::optional<uint64_t>* out);
  JsonField operator[](std::string_view name) const { return object_[name]; }

  // Notes an error, unless there is one already.
  void Fail(std::string_view name, std::string_view what);
  void Fail(ApiError error);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  // Takes the value, or notes the error as this field's.
  template <typename T, typename Out>
  void Take(std::string_view name, Result<T> value, Out* out) {
    if (value) {
      *out = *std::move(value);
    } else {
      Fail({.message = std::move(value.error().message), .param = object_[name].path()});
    }
  }

  const JsonField object_;
  std::optional<ApiError> error_;
};

}  // namespace kvcake
