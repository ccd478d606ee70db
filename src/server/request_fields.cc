#include "server/request_fields.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace kvcake {
namespace {

Result<double> NumberAbove(const JsonField& field, double least, double most) {
  const auto number = field.Number(least, most);
  if (number && *number > least) return *number;
  const bool bounded = most < std::numeric_limits<double>::max();
  return field.Not(fmt::format("a number above {}{}", least,
                               bounded ? fmt::format(" and at most {}", most) : ""));
}

Result<std::vector<std::string>> Texts(const JsonField& field, size_t count_max, size_t bytes_max) {
  std::vector<std::string> texts;
  if (field.value().is_string()) {
    texts.emplace_back();
    ASSIGN_OR_RETURN(texts[0], field.Text("", bytes_max));
    return texts;
  }
  if (!field.value().is_array()) return field.Not("a string or an array of strings");
  if (field.value().size() > count_max) {
    return field.Bad(
        fmt::format("has {} strings, more than the limit of {}", field.value().size(), count_max));
  }
  for (size_t i = 0; i < field.value().size(); ++i) {
    if (field[i].null()) return field[i].Not("a string");
    ASSIGN_OR_RETURN(texts.emplace_back(), field[i].Text("", bytes_max));
  }
  return texts;
}

Result<std::vector<int32_t>> TokenIds(const JsonField& field, size_t count_max) {
  const nlohmann::json& value = field.value();
  if (!value.is_array()) return field.Not("an array of token ids");
  if (value.size() > count_max) {
    return field.Bad(fmt::format("has {} ids, more than the limit of {}", value.size(), count_max));
  }
  std::vector<int32_t> tokens;
  tokens.reserve(value.size());
  for (const auto& element : value) {
    // A field costs more than the rest, so it is made for errors only.
    if (!element.is_number_unsigned() ||
        element.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
      return field[tokens.size()].Not("a token id");
    }
    tokens.push_back(element.get<int32_t>());
  }
  return tokens;
}

// A whole number that is written with a point, as by clients that know no integers.
std::optional<int64_t> WholeFloat(const JsonField& field) {
  constexpr double kExactEnd = 0x1p53;
  if (!field.value().is_number_float()) return std::nullopt;
  const auto number = field.value().get<double>();
  if (number != std::trunc(number) || std::fabs(number) >= kExactEnd) return std::nullopt;
  return static_cast<int64_t>(number);
}

Result<int> Int(const JsonField& field, int least, int most) {
  const auto whole = WholeFloat(field);
  if (whole && *whole >= least && *whole <= most) return static_cast<int>(*whole);
  return field.Int(least, most);
}

Result<uint64_t> Integer(const JsonField& field) {
  if (const auto whole = WholeFloat(field)) return static_cast<uint64_t>(*whole);
  const nlohmann::json& value = field.value();
  if (!value.is_number_integer()) return field.Not("an integer");
  return value.is_number_unsigned() ? value.get<uint64_t>()
                                    : static_cast<uint64_t>(value.get<int64_t>());
}

}  // namespace

RequestFields::RequestFields(JsonField object) : object_(std::move(object)) {
  if (object_.value().is_object()) return;
  const std::string& path = object_.path();
  Fail({.message = fmt::format("{} must be a JSON object, not {}",
                               path.empty() ? "the request" : path, object_.Show()),
        .param = path});
}

void RequestFields::Fail(std::string_view name, std::string_view what) {
  const std::string path = object_[name].path();
  Fail({.message = fmt::format("{} {}", path, what), .param = path});
}

void RequestFields::Fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void RequestFields::Read(std::string_view name, bool* out) {
  Take(name, object_[name].Flag(*out), out);
}

void RequestFields::Read(std::string_view name, std::string* out, size_t bytes_max) {
  Take(name, object_[name].Text(*out, bytes_max), out);
}

void RequestFields::Read(std::string_view name, double least, double most, double* out,
                         bool above) {
  const JsonField field = object_[name];
  if (field.null()) return;
  Take(name, above ? NumberAbove(field, least, most) : field.Number(least, most), out);
}

void RequestFields::Read(std::string_view name, int least, int most, int* out) {
  const JsonField field = object_[name];
  if (!field.null()) Take(name, Int(field, least, most), out);
}

void RequestFields::Read(std::string_view name, int least, int most, std::optional<int>* out) {
  const JsonField field = object_[name];
  if (!field.null()) Take(name, Int(field, least, most), out);
}

void RequestFields::Read(std::string_view name, size_t count_max, size_t bytes_max,
                         std::vector<std::string>* out) {
  const JsonField field = object_[name];
  if (!field.null()) Take(name, Texts(field, count_max, bytes_max), out);
}

void RequestFields::Read(std::string_view name, size_t count_max, std::vector<int32_t>* out) {
  Read(name, object_[name], count_max, out);
}

void RequestFields::Read(std::string_view name, const JsonField& value, size_t count_max,
                         std::vector<int32_t>* out) {
  if (!value.null()) Take(name, TokenIds(value, count_max), out);
}

void RequestFields::Read(std::string_view name, std::optional<uint64_t>* out) {
  const JsonField field = object_[name];
  if (!field.null()) Take(name, Integer(field), out);
}

}  // namespace kvcake
