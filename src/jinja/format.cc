#include "jinja/format.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "jinja/text.h"

namespace kvcake::jinja {
namespace {

constexpr int64_t kPrecisionMax = 1000;

// What a conversion asks for, in either language.
struct Spec {
  char32_t fill = U' ';
  char align = 0;  // '<', '>', '^', '='; 0: as the type has it
  char sign = '-';
  bool alternate = false;
  char grouping = 0;
  int64_t width = 0;
  std::optional<int64_t> precision;
  char type = 0;
};

std::string Padded(const Spec& spec, std::string_view sign, std::string_view body, char align) {
  const char how = spec.align ? spec.align : align;
  if (how != '=') {
    const Side side = how == '<' ? Side::kRight : how == '>' ? Side::kLeft : Side::kBoth;
    if (side != Side::kBoth) {
      return Pad(std::string(sign) + std::string(body), spec.width, spec.fill, side);
    }
    // Unlike str.center, an odd one comes behind.
    const std::string text = std::string(sign) + std::string(body);
    const auto size = static_cast<int64_t>(ToCodes(text).size());
    const std::string half =
        Pad(text, size + std::max<int64_t>(spec.width - size, 0) / 2, spec.fill, Side::kLeft);
    return Pad(half, spec.width, spec.fill, Side::kRight);
  }
  const auto rest = spec.width - static_cast<int64_t>(sign.size());
  return std::string(sign) + Pad(body, rest, spec.fill, Side::kLeft);
}

std::string Grouped(std::string digits, char separator) {
  if (!separator) return digits;
  size_t end = digits.find_first_not_of("0123456789");
  if (end == digits.npos) end = digits.size();
  for (size_t at = end; at > 3;) {
    at -= 3;
    digits.insert(at, 1, separator);
  }
  return digits;
}

std::string_view SignOf(const Spec& spec, bool negative) {
  if (negative) return "-";
  return spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
}

std::string FormatInteger(const Spec& spec, int64_t value) {
  const uint64_t size = value < 0 ? 0 - static_cast<uint64_t>(value) : value;
  std::string prefix, digits;
  switch (spec.type) {
    case 'x':
      digits = fmt::format("{:x}", size), prefix = "0x";
      break;
    case 'X':
      digits = fmt::format("{:X}", size), prefix = "0X";
      break;
    case 'o':
      digits = fmt::format("{:o}", size), prefix = "0o";
      break;
    case 'b':
      digits = fmt::format("{:b}", size), prefix = "0b";
      break;
    default:
      digits = Grouped(std::to_string(size), spec.grouping);
  }
  if (spec.grouping && spec.type != 'd' && spec.type != 0) {
    RaiseUnsupported("a separator of digits that are not decimal");
  }
  if (spec.precision) {  // % takes it for the fewest digits
    digits = Pad(digits, *spec.precision, U'0', Side::kLeft);
  }
  const std::string sign =
      std::string(SignOf(spec, value < 0)) + (spec.alternate ? prefix : std::string());
  return Padded(spec, sign, digits, '>');
}

std::string FormatFloat(const Spec& spec, double value) {
  char type = spec.type ? spec.type : 'g';
  const bool percent = type == '%';
  if (percent) {
    value *= 100;
    type = 'f';
  }
  std::string body;
  const double size = std::fabs(value);
  if (spec.type == 0 && !spec.precision) {
    body = FloatRepr(size);
  } else if (spec.type == 0) {
    RaiseUnsupported("a precision without a type");
  } else {
    const auto precision = static_cast<int>(spec.precision.value_or(6));
    const std::string format = std::string(spec.alternate ? "%#.*" : "%.*") + type;
    body.resize(static_cast<size_t>(precision) + 400);
    // The format is one of %[#].*[eEfFgG].
    body.resize(std::snprintf(body.data(), body.size(), format.c_str(), precision, size));
  }
  if (percent) body += '%';
  const bool negative = std::signbit(value) && !std::isnan(value);
  return Padded(spec, SignOf(spec, negative), Grouped(std::move(body), spec.grouping), '>');
}

std::string FormatText(const Spec& spec, const std::string& text) {
  std::string body = text;
  if (spec.precision) {
    body = FromCodes(ToCodes(text).substr(0, static_cast<size_t>(*spec.precision)));
  }
  return Padded(spec, "", body, '<');
}

// A number of digits at text[*at]; nothing where there is none.
std::optional<int64_t> Digits(std::string_view text, size_t* at) {
  std::optional<int64_t> number;
  while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9') {
    number = number.value_or(0) * 10 + (text[(*at)++] - '0');
    Budget::CheckSize(static_cast<uint64_t>(*number));
  }
  return number;
}

void CheckPrecision(const Spec& spec) {
  if (spec.precision && *spec.precision > kPrecisionMax) {
    RaiseUnsupported("a precision of more than {}", kPrecisionMax);
  }
}

// "Conversion of 'str' by %d" and the like.
[[noreturn]] void RaiseType(char type, const Value& value) {
  Raise("'{}' cannot be formatted by '{}'", TypeName(value), type);
}

class PercentFormatter {
 public:
  PercentFormatter(std::string_view format, const Value& values)
      : format_(format), values_(values), tuple_(values.Is(Type::kTuple)) {}

  std::string Run() {
    std::string out;
    for (size_t at = 0; at < format_.size();) {
      const size_t mark = std::min(format_.find('%', at), format_.size());
      out += format_.substr(at, mark - at);
      if (mark == format_.size()) break;
      at = mark + 1;
      out += Conversion(&at);
      Budget::Spend(1);
      Budget::CheckSize(out.size());
    }
    // Python takes what has items for a mapping, of which not all has to be used.
    const bool mapping = values_.Is(Type::kDict) || values_.Is(Type::kList) ||
                         values_.Is(Type::kUndefined) ||
                         (values_.Is(Type::kSequence) && values_.Kind().starts_with("range"));
    if (!by_name_ && !mapping && used_ < (tuple_ ? values_.List().size() : 1)) {
      Raise("not all arguments converted during string formatting");
    }
    return out;
  }

 private:
  const Value& Next() {
    if (tuple_ ? used_ >= values_.List().size() : used_ > 0) {
      Raise("not enough arguments for format string");
    }
    return tuple_ ? values_.List()[used_++] : (++used_, values_);
  }

  std::string Conversion(size_t* at) {
    Spec spec;
    const Value* named = nullptr;
    if (Peek(*at) == '(') {
      const size_t end = format_.find(')', *at);
      if (end == format_.npos) Raise("incomplete format key");
      if (!values_.Is(Type::kDict)) Raise("format requires a mapping");
      by_name_ = true;
      named = values_.Find(format_.substr(*at + 1, end - *at - 1));
      if (!named) Raise("KeyError: {}", format_.substr(*at + 1, end - *at - 1));
      *at = end + 1;
    }
    bool zero = false;
    for (;; ++*at) {
      const char flag = Peek(*at);
      if (flag == '-')
        spec.align = '<';
      else if (flag == '+')
        spec.sign = '+';
      else if (flag == ' ')
        spec.sign = spec.sign == '+' ? '+' : ' ';
      else if (flag == '0')
        zero = true;
      else if (flag == '#')
        spec.alternate = true;
      else
        break;
    }
    spec.width = Number(at).value_or(0);
    if (spec.width < 0) spec.align = '<', spec.width = -spec.width;
    if (Peek(*at) == '.') {
      ++*at;
      spec.precision = std::max<int64_t>(Number(at).value_or(0), 0);
    }
    CheckPrecision(spec);
    while (Peek(*at) == 'h' || Peek(*at) == 'l' || Peek(*at) == 'L') ++*at;
    spec.type = Peek((*at)++);
    if (spec.type == 0) Raise("incomplete format");
    if (spec.type == '%') return "%";
    const bool number = std::string_view("diuoxXeEfFgG").find(spec.type) != std::string_view::npos;
    if (number && zero && spec.align != '<') spec.align = '=', spec.fill = U'0';
    return Convert(&spec, named ? *named : Next());
  }

  static std::string Convert(Spec* spec, const Value& value) {
    if (spec->align == 0) spec->align = '>';
    switch (spec->type) {
      case 's':
        return FormatText(*spec, Str(value));
      case 'r':
        return FormatText(*spec, Repr(value));
      case 'c':
        spec->precision.reset();
        if (value.Is(Type::kString) && ToCodes(value.Text()).size() == 1) {
          return FormatText(*spec, value.Text());
        }
        if (value.Is(Type::kInt)) RaiseUnsupported("%c of a number");
        RaiseType('c', value);
      case 'd':
      case 'i':
      case 'u':
        spec->type = 'd';
        if (value.Is(Type::kFloat) && std::fabs(value.real) < 9e18) {
          return FormatInteger(*spec, static_cast<int64_t>(value.real));
        }
        [[fallthrough]];
      case 'o':
      case 'x':
      case 'X':
        if (!value.IsInteger()) RaiseType(spec->type, value);
        return FormatInteger(*spec, value.integer);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (!value.IsNumber()) RaiseType(spec->type, value);
        return FormatFloat(*spec, value.AsDouble());
      default:
        if (spec->type == 'a') RaiseUnsupported("%a");
        Raise("unsupported format character '{}'", spec->type);
    }
  }

  // Digits, or * for the next value.
  std::optional<int64_t> Number(size_t* at) {
    if (Peek(*at) != '*') return Digits(format_, at);
    ++*at;
    const Value& value = Next();
    if (!value.IsInteger()) Raise("* wants int");
    Budget::CheckSize(value.integer < 0 ? 0 - static_cast<uint64_t>(value.integer)
                                        : static_cast<uint64_t>(value.integer));
    return value.integer;
  }

  char Peek(size_t at) const { return at < format_.size() ? format_[at] : '\0'; }

  const std::string_view format_;
  const Value& values_;
  const bool tuple_;
  bool by_name_ = false;
  size_t used_ = 0;
};

// [[fill]align][sign][#][0][width][grouping][.precision][type]
Spec ParseSpec(std::string_view text, bool* zero) {
  Spec spec;
  std::u32string codes = ToCodes(text);
  const auto is_align = [&](size_t i) {
    return i < codes.size() && codes[i] < 128 &&
           std::string_view("<>=^").find(static_cast<char>(codes[i])) != std::string_view::npos;
  };
  size_t skip = 0;
  if (is_align(1)) {
    spec.fill = codes[0];
    skip = 2;
  } else if (is_align(0)) {
    skip = 1;
  }
  if (skip) spec.align = static_cast<char>(codes[skip - 1]);
  const std::string rest = FromCodes(codes.substr(skip));
  size_t at = 0;
  const auto peek = [&] { return at < rest.size() ? rest[at] : '\0'; };
  if (peek() == '+' || peek() == '-' || peek() == ' ') spec.sign = rest[at++];
  if (peek() == 'z') RaiseUnsupported("the option z of a format");
  if (peek() == '#') spec.alternate = true, ++at;
  if (peek() == '0') *zero = true, ++at;
  spec.width = Digits(rest, &at).value_or(0);
  if (peek() == ',' || peek() == '_') spec.grouping = rest[at++];
  if (peek() == '.') {
    ++at;
    spec.precision = Digits(rest, &at);
    if (!spec.precision) Raise("Format specifier missing precision");
  }
  CheckPrecision(spec);
  if (at < rest.size()) spec.type = rest[at++];
  if (at < rest.size()) Raise("Invalid format specifier '{}'", text);
  if (*zero && skip == 0) spec.align = '=';
  if (*zero && skip < 2) spec.fill = U'0';
  if (spec.grouping && *zero) RaiseUnsupported("zeros and a separator of digits");
  return spec;
}

std::string FormatOne(const Value& value, std::string_view text) {
  if (text.empty()) return Str(value);
  bool zero = false;
  Spec spec = ParseSpec(text, &zero);
  if (value.Is(Type::kString)) {
    if ((spec.type && spec.type != 's') || spec.sign != '-' || spec.alternate || spec.grouping ||
        (spec.align == '=' && !zero)) {
      Raise("Invalid format specifier '{}' for object of type 'str'", text);
    }
    if (spec.align == '=') spec.align = '<';  // a 0 alone pads text behind it
    return FormatText(spec, value.Text());
  }
  if (!value.IsNumber()) {
    Raise("unsupported format string passed to {}.__format__", TypeName(value));
  }
  constexpr std::string_view kFloat = "eEfFgG%", kInteger = "bdoxX";
  if (spec.type == 'n' || spec.type == 'c') RaiseUnsupported("the format '{}'", spec.type);
  const bool as_float = spec.type && kFloat.find(spec.type) != kFloat.npos;
  if (as_float || (value.Is(Type::kFloat) && !spec.type)) {
    return FormatFloat(spec, value.AsDouble());
  }
  if (!value.IsInteger() || (spec.type && kInteger.find(spec.type) == kInteger.npos)) {
    RaiseType(spec.type, value);
  }
  if (spec.precision) Raise("Precision not allowed in integer format specifier");
  return FormatInteger(spec, value.integer);
}

class BraceFormatter {
 public:
  explicit BraceFormatter(const Args& args) : args_(args) {}

  std::string Run(std::string_view format, int depth) {
    if (depth > 1) Raise("Max string recursion exceeded");
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const char c = format[at++];
      const bool twice = at < format.size() && format[at] == c;
      if (c != '{' && c != '}') {
        out += c;
      } else if (twice) {
        out += c;
        ++at;
      } else if (c == '}') {
        Raise("Single '}}' encountered in format string");
      } else {
        out += Field(FieldText(format, &at), depth);
        Budget::Spend(1);
      }
      Budget::CheckSize(out.size());
    }
    return out;
  }

 private:
  static std::string_view FieldText(std::string_view format, size_t* at) {
    const size_t begin = *at;
    for (int open = 1; *at < format.size(); ++*at) {
      if (format[*at] == '{') ++open;
      if (format[*at] == '}' && --open == 0) return format.substr(begin, (*at)++ - begin);
    }
    Raise("expected '}}' before end of string");
  }

  std::string Field(std::string_view text, int depth) {
    // A bracket of the name may hide marks.
    size_t end = 0;
    for (bool inside = false; end < text.size(); ++end) {
      if (text[end] == '[') inside = true;
      if (text[end] == ']') inside = false;
      if (!inside && (text[end] == '!' || text[end] == ':')) break;
    }
    Value value = Look(text.substr(0, end));
    text.remove_prefix(end);
    if (text.starts_with('!')) {
      if (text.size() < 2 || (text.size() > 2 && text[2] != ':')) {
        Raise("expected ':' after conversion specifier");
      }
      if (text[1] == 'a') RaiseUnsupported("the conversion !a");
      if (text[1] != 's' && text[1] != 'r') Raise("Unknown conversion specifier {}", text[1]);
      value = Value::String(text[1] == 'r' ? Repr(value) : Str(value));
      text.remove_prefix(2);
    }
    const std::string spec = text.empty() ? std::string() : Run(text.substr(1), depth + 1);
    return FormatOne(value, spec);
  }

  Value Look(std::string_view name) {
    size_t end = name.find_first_of(".[");
    Value value = First(name.substr(0, end));
    while (end < name.size()) {
      const size_t begin = end + 1;
      if (name[end] == '.') {
        end = std::min(name.find_first_of(".[", begin), name.size());
        if (end == begin) Raise("Empty attribute in format string");
        value = GetAttribute(value, std::string(name.substr(begin, end - begin)));
        continue;
      }
      end = name.find(']', begin);
      if (end == name.npos) Raise("Missing ']' in format string");
      if (end == begin) Raise("Empty attribute in format string");
      value = GetItem(value, Key(name.substr(begin, end - begin)));
      if (++end < name.size() && name[end] != '.' && name[end] != '[') {
        Raise("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  static Value Key(std::string_view text) {
    size_t at = 0;
    const auto number = Digits(text, &at);
    return number && at == text.size() ? Value::Int(*number) : Value::String(std::string(text));
  }

  Value First(std::string_view name) {
    size_t at = 0;
    std::optional<int64_t> index = Digits(name, &at);
    if (name.empty()) {
      if (manual_) Raise("cannot switch from manual field specification to automatic numbering");
      automatic_ = true;
      index = next_++;
    } else if (index && at == name.size()) {
      if (automatic_) Raise("cannot switch from automatic numbering to manual field specification");
      manual_ = true;
    } else {
      for (const auto& [given, value] : args_.named) {
        if (given == name) return value;
      }
      Raise("KeyError: '{}'", name);
    }
    if (*index >= static_cast<int64_t>(args_.values.size())) {
      Raise("Replacement index {} out of range for positional args tuple", *index);
    }
    return args_.values[static_cast<size_t>(*index)];
  }

  const Args& args_;
  bool automatic_ = false;
  bool manual_ = false;
  int64_t next_ = 0;
};

}  // namespace

std::string FormatPercent(std::string_view format, const Value& values) {
  return PercentFormatter(format, values).Run();
}

std::string FormatBraces(std::string_view format, const Args& args) {
  return BraceFormatter(args).Run(format, 0);
}

}  // namespace kvcake::jinja
