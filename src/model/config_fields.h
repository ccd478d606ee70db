// One object of a config.json, read field by field; every error names the file and the field.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvcake {

constexpr int kMaxDimension = 1 << 20;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxPositions = 1 << 30;
constexpr int kMaxLayers = 4096;

// A field that is null counts as absent, as Hugging Face treats it. Borrows the object.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string source)
      : object_(object), source_(std::move(source)) {}

  const std::string& source() const { return source_; }
  const nlohmann::json* Find(const char* name) const;
  bool IsNull(const char* name) const { return object_.contains(name) && !Find(name); }

  // kInvalidArgument when the value is no whole number in [min, max], or absent without a default.
  Result<int> Int(const char* name, int min, int max, std::optional<int> absent = {}) const;
  Result<double> Number(const char* name, double min, double max,
                        std::optional<double> absent = {}) const;
  Result<bool> Bool(const char* name, bool absent) const;
  Result<std::string> Text(const char* name) const;  // empty when absent

  tl::unexpected<Error> Unsupported(std::string_view what) const {
    return Fail(ErrorCode::kUnsupported, "{}: {}", source_, what);
  }
  tl::unexpected<Error> Invalid(std::string_view what) const {
    return Fail(ErrorCode::kInvalidArgument, "{}: {}", source_, what);
  }
  // A value, short enough for a message.
  static std::string Show(const nlohmann::json& value);

 private:
  const nlohmann::json& object_;
  std::string source_;
};

}  // namespace kvcake
