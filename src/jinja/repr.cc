// Values as Python prints them.
#include <charconv>
#include <cmath>

#include "base/utf8.h"
#include "jinja/text.h"
#include "jinja/value.h"

namespace kvcake::jinja {
namespace {

std::string ReprString(const std::string& text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char32_t c : ToCodes(text)) {
    if (c == U'\\' || c == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (Has(c, kPrintable)) {
      AppendUtf8(c, &out);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  return out + quote;
}

std::string ReprItems(const Items& items) {
  std::string out = "{";
  for (const auto& [key, value] : items) {
    if (out.size() > 1) out += ", ";
    out += Repr(key) + ": " + Repr(value);
    Budget::CheckSize(out.size());
  }
  return out + "}";
}

std::string ReprList(const Value& value) {
  if (value.IsGenerator()) {
    RaiseUnsupported("printing what {} makes: add |list", "map, select or the like");
  }
  if (value.Is(Type::kSequence) && value.Kind().starts_with("range")) return value.Kind();
  std::string out;
  for (const Value& item : value.List()) {
    if (!out.empty()) out += ", ";
    out += Repr(item);
    Budget::CheckSize(out.size());
  }
  if (value.Is(Type::kTuple)) return "(" + out + (value.List().size() == 1 ? ",)" : ")");
  out = "[" + out + "]";
  return value.Is(Type::kSequence) ? value.Kind() + "(" + out + ")" : out;
}

}  // namespace

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string text(buffer, end);
  const size_t mark = text.find('e');
  const int exponent = std::stoi(text.substr(mark + 1));
  if (exponent < -4 || exponent >= 16) return text;
  const auto fixed =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string out(buffer, fixed);
  return out.find('.') == out.npos ? out + ".0" : out;
}

std::string Repr(const Value& value) {
  if (value.Is(Type::kString)) {
    return value.safe ? "Markup(" + ReprString(value.Text()) + ")" : ReprString(value.Text());
  }
  if (value.Is(Type::kUndefined)) return "Undefined";
  return Str(value);
}

std::string Str(const Value& value) {
  const DepthGuard guard;
  Budget::Spend(1);
  switch (value.type) {
    case Type::kUndefined:
      return "";
    case Type::kNone:
      return "None";
    case Type::kBool:
      return value.integer ? "True" : "False";
    case Type::kInt:
      return std::to_string(value.integer);
    case Type::kFloat:
      return FloatRepr(value.real);
    case Type::kString:
      return value.Text();
    case Type::kList:
    case Type::kTuple:
    case Type::kSequence:
      return ReprList(value);
    case Type::kDict:
      return ReprItems(value.Dict());
    case Type::kNamespace:
      return "<Namespace " + ReprItems(value.Dict()) + ">";
    default:
      RaiseUnsupported("printing a {}", TypeName(value));
  }
}

}  // namespace kvcake::jinja
