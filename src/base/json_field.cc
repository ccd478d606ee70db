#include "base/json_field.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/dump_json.h"
#include "base/utf8.h"

namespace kvcake {

namespace {

constexpr size_t kShownBytes = 80;
const nlohmann::json kNull;

template <typename T>
std::string Range(const char* kind, T min, T max) {
  if (max == std::numeric_limits<T>::max()) return fmt::format("{} of at least {}", kind, min);
  return fmt::format("{} from {} to {}", kind, min, max);
}

// Every number of a type that JSON has is one of int64_t or, beyond it, of uint64_t.
bool IsWithin(const nlohmann::json& value, int64_t min, int64_t max) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return false;
  }
  const auto number = value.get<int64_t>();
  return number >= min && number <= max;
}

}  // namespace

bool JsonField::null() const { return value_->is_null(); }

bool JsonField::absent() const { return value_ == &kNull; }

JsonField JsonField::operator[](std::string_view member) const {
  std::string path = path_;
  if (!path.empty()) path += '.';
  path += Clip(member, kShownBytes);
  const auto it = value_->is_object() ? value_->find(std::string(member)) : value_->end();
  return {value_->is_object() && it != value_->end() ? *it : kNull, source_, std::move(path)};
}

JsonField JsonField::operator[](size_t element) const {
  const bool exists = value_->is_array() && element < value_->size();
  return {exists ? (*value_)[element] : kNull, source_, fmt::format("{}[{}]", path_, element)};
}

Result<std::string> JsonField::Text() const {
  if (!value_->is_string()) return Not("text");
  return value_->get<std::string>();
}

Result<std::string> JsonField::Text(std::string_view absent, size_t bytes_max) const {
  if (null()) return std::string(absent);
  if (value_->is_string() && value_->get_ref<const std::string&>().size() > bytes_max) {
    return Bad(fmt::format("has {} bytes, more than the limit of {}",
                           value_->get_ref<const std::string&>().size(), bytes_max));
  }
  return Text();
}

Result<bool> JsonField::Flag() const {
  if (!value_->is_boolean()) return Not("true or false");
  return value_->get<bool>();
}

Result<bool> JsonField::Flag(bool absent) const {
  if (null()) return absent;
  return Flag();
}

Result<int> JsonField::Int(int min, int max, std::optional<int> absent) const {
  if (absent && null()) return *absent;
  if (!IsWithin(*value_, min, max)) return Not(Range("a whole number", min, max));
  return value_->get<int>();
}

Result<double> JsonField::Number(double min, double max, std::optional<double> absent) const {
  if (absent && null()) return *absent;
  const double number =
      value_->is_number() ? value_->get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!(number >= min && number <= max)) return Not(Range("a number", min, max));
  return number;
}

Result<size_t> JsonField::ArraySize() const {
  if (!value_->is_array()) return Not("a list");
  return value_->size();
}

Status JsonField::CheckObject() const {
  if (!value_->is_object()) return Not("an object");
  return {};
}

std::string JsonField::About(std::string_view what) const {
  return fmt::format("{}{}{}{}{}", source_, source_.empty() ? "" : ": ", path_,
                     path_.empty() ? "" : " ", what);
}

tl::unexpected<Error> JsonField::Bad(std::string_view what) const {
  return Fail(ErrorCode::kInvalidArgument, "{}", About(what));
}

tl::unexpected<Error> JsonField::Not(std::string_view expected) const {
  if (null()) return Bad(fmt::format("is missing; it must be {}", expected));
  return Bad(fmt::format("is {}; it must be {}", Show(), expected));
}

tl::unexpected<Error> JsonField::Unsupported(std::string_view what) const {
  return Fail(ErrorCode::kUnsupported, "{}", About(what));
}

tl::unexpected<Error> JsonField::Refuse(std::string_view what) const {
  return Unsupported(fmt::format("{} is not supported", what));
}

std::string JsonField::Show() const {
  if (value_->is_object()) return "an object";
  if (value_->is_array()) return "a list";
  if (value_->is_string())
    return '"' + Clip(value_->get_ref<const std::string&>(), kShownBytes) + '"';
  return DumpJson(*value_);
}

}  // namespace kvcake
