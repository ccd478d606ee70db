#include "model/json_field.h"

#include "model/utf8.h"

namespace kvcake {

namespace {

constexpr size_t kShownBytes = 80;
const nlohmann::json kNull;

}  // namespace

JsonField JsonField::operator[](std::string_view member) const {
  std::string path = path_;
  if (!path.empty()) path += '.';
  path += Clip(member, kShownBytes);
  const auto it = value_->is_object() ? value_->find(std::string(member)) : value_->end();
  return {value_->is_object() && it != value_->end() ? *it : kNull, file_, std::move(path)};
}

JsonField JsonField::operator[](size_t element) const {
  const bool exists = value_->is_array() && element < value_->size();
  return {exists ? (*value_)[element] : kNull, file_, fmt::format("{}[{}]", path_, element)};
}

Result<std::string> JsonField::Text() const {
  if (!value_->is_string()) return BadType("text");
  return value_->get<std::string>();
}

Result<std::string> JsonField::Text(std::string_view absent) const {
  if (null()) return std::string(absent);
  return Text();
}

Result<bool> JsonField::Flag() const {
  if (!value_->is_boolean()) return BadType("true or false");
  return value_->get<bool>();
}

Result<bool> JsonField::Flag(bool absent) const {
  if (null()) return absent;
  return Flag();
}

Result<int32_t> JsonField::Number(int32_t max) const {
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() > static_cast<uint64_t>(max)) {
    return BadType(fmt::format("a number from 0 to {}", max));
  }
  return value_->get<int32_t>();
}

Result<size_t> JsonField::ArraySize() const {
  if (!value_->is_array()) return BadType("a list");
  return value_->size();
}

Status JsonField::CheckObject() const {
  if (!value_->is_object()) return BadType("an object");
  return {};
}

tl::unexpected<Error> JsonField::Bad(std::string_view what) const {
  return Fail(ErrorCode::kInvalidArgument, "{}: {}{}{}", file_, path_, path_.empty() ? "" : " ",
              what);
}

tl::unexpected<Error> JsonField::Refuse(std::string_view what) const {
  return Fail(ErrorCode::kUnsupported, "{}: {}{}{} is not supported", file_, path_,
              path_.empty() ? "" : " ", what);
}

std::string JsonField::Show() const {
  if (value_->is_object()) return "an object";
  if (value_->is_array()) return "a list";
  if (value_->is_string())
    return '"' + Clip(value_->get_ref<const std::string&>(), kShownBytes) + '"';
  return value_->dump();
}

tl::unexpected<Error> JsonField::BadType(std::string_view expected) const {
  if (null()) return Bad(fmt::format("is missing; it must be {}", expected));
  return Bad(fmt::format("is {}; it must be {}", Show(), expected));
}

}  // namespace kvcake
