#include "server/json_fields.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "base/dump_json.h"
#include "model/utf8.h"

namespace kvcake {
namespace {

constexpr size_t kShownBytes = 60;

// The value, short enough for a message; of what may be long, only what it is.
std::string Show(const nlohmann::json& value) {
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";
  return Clip(DumpJson(value), kShownBytes);
}

bool IsInteger(const nlohmann::json& value, int64_t least, int64_t most) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return false;
  }
  const int64_t number = value.get<int64_t>();
  return number >= least && number <= most;
}

}  // namespace

JsonFields::JsonFields(const nlohmann::json& object, std::string path)
    : object_(object), path_(std::move(path)) {
  if (object.is_object()) return;
  const std::string whole = path_.empty() ? "" : path_.substr(0, path_.size() - 1);
  Fail({.message = fmt::format("{} must be a JSON object, not {}",
                               whole.empty() ? "the request" : whole, Show(object)),
        .param = whole});
}

const nlohmann::json& JsonFields::operator[](std::string_view name) const {
  static const nlohmann::json kNull;
  if (!object_.is_object()) return kNull;
  const auto it = object_.find(std::string(name));
  return it == object_.end() ? kNull : *it;
}

void JsonFields::Fail(std::string_view name, std::string_view what) {
  Fail({.message = fmt::format("{} {}", Path(name), what), .param = Path(name)});
}

void JsonFields::Fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void JsonFields::Read(std::string_view name, bool* out) {
  const nlohmann::json& value = (*this)[name];
  if (value.is_null()) return;
  if (!value.is_boolean()) return Fail(name, "must be true or false, not " + Show(value));
  *out = value.get<bool>();
}

void JsonFields::Read(std::string_view name, std::string* out, size_t bytes_max) {
  const nlohmann::json& value = (*this)[name];
  if (value.is_null()) return;
  if (!value.is_string()) return Fail(name, "must be a string, not " + Show(value));
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() > bytes_max) {
    return Fail(name,
                fmt::format("has {} bytes, more than the limit of {}", text.size(), bytes_max));
  }
  *out = text;
}

void JsonFields::Read(std::string_view name, double least, double most, double* out, bool above) {
  const nlohmann::json& value = (*this)[name];
  if (value.is_null()) return;
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  if (!(number >= least && number <= most) || (above && number == least)) {
    const std::string range = most == std::numeric_limits<double>::max()
                                  ? fmt::format("{} {}", above ? "above" : "of at least", least)
                              : above ? fmt::format("above {} and at most {}", least, most)
                                      : fmt::format("from {} to {}", least, most);
    return Fail(name, fmt::format("must be a number {}, not {}", range, Show(value)));
  }
  *out = number;
}

void JsonFields::Read(std::string_view name, int least, int most, int* out) {
  std::optional<int> number;
  Read(name, least, most, &number);
  if (number) *out = *number;
}

void JsonFields::Read(std::string_view name, int least, int most, std::optional<int>* out) {
  const nlohmann::json& value = (*this)[name];
  if (value.is_null()) return;
  if (!IsInteger(value, least, most)) {
    const std::string range = most == std::numeric_limits<int>::max()
                                  ? fmt::format("of at least {}", least)
                                  : fmt::format("from {} to {}", least, most);
    return Fail(name, fmt::format("must be an integer {}, not {}", range, Show(value)));
  }
  *out = value.get<int>();
}

void JsonFields::Read(std::string_view name, size_t count_max, size_t bytes_max,
                      std::vector<std::string>* out) {
  const nlohmann::json& value = (*this)[name];
  if (value.is_null()) return;
  const auto all_texts = [&] {
    for (const auto& element : value) {
      if (!element.is_string()) return false;
    }
    return true;
  };
  if (!value.is_string() && !(value.is_array() && all_texts())) {
    return Fail(name, "must be a string or an array of strings, not " + Show(value));
  }
  std::vector<std::string> texts;
  if (value.is_string()) {
    texts.push_back(value.get<std::string>());
  } else {
    if (value.size() > count_max) {
      return Fail(
          name, fmt::format("has {} strings, more than the limit of {}", value.size(), count_max));
    }
    texts = value.get<std::vector<std::string>>();
  }
  for (const std::string& text : texts) {
    if (text.size() > bytes_max) {
      return Fail(name, fmt::format("has a string of {} bytes, more than the limit of {}",
                                    text.size(), bytes_max));
    }
  }
  *out = std::move(texts);
}

void JsonFields::Read(std::string_view name, size_t count_max, std::vector<int32_t>* out) {
  Read(name, (*this)[name], count_max, out);
}

void JsonFields::Read(std::string_view name, const nlohmann::json& value, size_t count_max,
                      std::vector<int32_t>* out) {
  if (value.is_null()) return;
  if (!value.is_array()) return Fail(name, "must be an array of token ids, not " + Show(value));
  if (value.size() > count_max) {
    return Fail(name,
                fmt::format("has {} ids, more than the limit of {}", value.size(), count_max));
  }
  std::vector<int32_t> tokens;
  tokens.reserve(value.size());
  for (const auto& element : value) {
    if (!IsInteger(element, 0, std::numeric_limits<int32_t>::max())) {
      return Fail(name, "must be an array of token ids; one element is " + Show(element));
    }
    tokens.push_back(element.get<int32_t>());
  }
  *out = std::move(tokens);
}

void JsonFields::Read(std::string_view name, std::optional<uint64_t>* out) {
  const nlohmann::json& value = (*this)[name];
  if (value.is_null()) return;
  if (!value.is_number_integer()) return Fail(name, "must be an integer, not " + Show(value));
  *out = value.is_number_unsigned() ? value.get<uint64_t>()
                                    : static_cast<uint64_t>(value.get<int64_t>());
}

}  // namespace kvcake
