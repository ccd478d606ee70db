#include "model/config_fields.h"

#include <algorithm>

#include "base/dump_json.h"
#include "model/utf8.h"

namespace kvcake {

using nlohmann::json;

constexpr size_t kShownBytes = 60;
constexpr size_t kTextBytes = 200;  // names, which are shown whole

const json* Fields::Find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

Result<int> Fields::Int(const char* name, int min, int max, std::optional<int> absent) const {
  const json* value = Find(name);
  if (!value) {
    if (absent) return *absent;
    return Invalid(fmt::format("{} is missing", name));
  }
  const bool in_range =
      value->is_number_integer() &&
      (value->is_number_unsigned()
           ? value->get<uint64_t>() <= static_cast<uint64_t>(std::max(max, 0))
           : value->get<int64_t>() <= max) &&
      (value->is_number_unsigned() ? min <= 0 || value->get<uint64_t>() >= uint64_t(min)
                                   : value->get<int64_t>() >= min);
  if (!in_range) {
    return Invalid(fmt::format("{} is {}, but must be a whole number in [{}, {}]", name,
                               Show(*value), min, max));
  }
  return value->get<int>();
}

Result<double> Fields::Number(const char* name, double min, double max,
                              std::optional<double> absent) const {
  const json* value = Find(name);
  if (!value) {
    if (absent) return *absent;
    return Invalid(fmt::format("{} is missing", name));
  }
  if (value->is_number()) {
    const double number = value->get<double>();
    if (number >= min && number <= max) return number;
  }
  return Invalid(
      fmt::format("{} is {}, but must be a number in [{}, {}]", name, Show(*value), min, max));
}

Result<bool> Fields::Bool(const char* name, bool absent) const {
  const json* value = Find(name);
  if (!value) return absent;
  if (value->is_boolean()) return value->get<bool>();
  return Invalid(fmt::format("{} is {}, but must be true or false", name, Show(*value)));
}

Result<std::string> Fields::Text(const char* name) const {
  const json* value = Find(name);
  if (!value) return std::string();
  if (value->is_string() && value->get_ref<const std::string&>().size() <= kTextBytes) {
    return value->get<std::string>();
  }
  return Invalid(fmt::format("{} is {}, but must be a string of at most {} bytes", name,
                             Show(*value), kTextBytes));
}

std::string Fields::Show(const json& value) { return Clip(DumpJson(value), kShownBytes); }

}  // namespace kvcake
