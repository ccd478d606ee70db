#include <charconv>
#include <cmath>

#include "jinja/filters.h"
#include "jinja/numbers.h"
#include "jinja/text.h"

namespace kvcake::jinja {
namespace {

// Digits with single underscores between them, without these; nothing where there are others.
std::optional<std::string> WithoutUnderscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const auto is_digit = [&](size_t at) {
      return at < text.size() && isalnum(static_cast<unsigned char>(text[at]));
    };
    if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return std::nullopt;
  }
  return out;
}

std::string Stripped(std::string_view text) {
  std::string out = Strip(text, nullptr, Side::kBoth);
  for (const char32_t c : ToCodes(out)) {
    if (c >= 0x80 && Has(c, kDecimal)) RaiseUnsupported("a number of digits that are not ASCII");
  }
  return out;
}

}  // namespace

std::optional<int64_t> ParseInteger(std::string_view text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) Raise("int() base must be >= 2 and <= 36, or 0");
  std::string rest = Stripped(text);
  bool negative = false;
  if (rest.starts_with('-') || rest.starts_with('+')) {
    negative = rest[0] == '-';
    rest.erase(0, 1);
  }
  bool prefixed = false;
  const auto skip_prefix = [&](char letter, int64_t its_base) {
    if ((base != 0 && base != its_base) || rest.size() < 2 || rest[0] != '0') return;
    if ((rest[1] | 0x20) != letter) return;
    rest.erase(0, 2);
    base = its_base;
    prefixed = true;
    if (rest.starts_with('_')) rest.erase(0, 1);
  };
  if (!prefixed) skip_prefix('x', 16);
  if (!prefixed) skip_prefix('o', 8);
  if (!prefixed) skip_prefix('b', 2);
  const auto digits = WithoutUnderscores(rest);
  if (!digits || digits->empty()) return std::nullopt;
  if (base == 0) {
    if (digits->size() > 1 && (*digits)[0] == '0' &&
        digits->find_first_not_of('0') != std::string::npos) {
      return std::nullopt;
    }
    base = 10;
  }
  uint64_t value = 0;
  const char* const end = digits->data() + digits->size();
  const auto [stop, error] = std::from_chars(digits->data(), end, value, static_cast<int>(base));
  if (stop != end) return std::nullopt;
  const uint64_t most = static_cast<uint64_t>(INT64_MAX) + (negative ? 1 : 0);
  if (error != std::errc() || value > most) RaiseUnsupported("an integer beyond 64 bits");
  return static_cast<int64_t>(negative ? 0 - value : value);
}

std::optional<double> ParseFloat(std::string_view text) {
  const auto plain = WithoutUnderscores(Stripped(text));
  if (!plain || plain->empty()) return std::nullopt;
  std::string word = *plain;
  const bool negative = word[0] == '-';
  if (negative || word[0] == '+') word.erase(0, 1);
  for (char& c : word) c = static_cast<char>(tolower(static_cast<unsigned char>(c)));
  double value = 0;
  if (word == "inf" || word == "infinity") {
    value = HUGE_VAL;
  } else if (word == "nan") {
    value = NAN;
  } else {
    if (word.empty() || (!isdigit(static_cast<unsigned char>(word[0])) && word[0] != '.')) {
      return std::nullopt;
    }
    const char* const end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, value);
    if (stop != end) return std::nullopt;
    if (error != std::errc()) value = std::strtod(word.c_str(), nullptr);  // inf or 0, as Python
  }
  return negative ? -value : value;
}

namespace {

int64_t Truncated(double value) {
  if (std::isinf(value)) Raise("cannot convert float infinity to integer");
  if (std::fabs(value) >= 9.2e18) RaiseUnsupported("an integer beyond 64 bits");
  return static_cast<int64_t>(value);
}

Value IntFilter(const Value& value, Args& args) {
  const auto bound = Bind(args, "int", {"default", "base"});
  const int64_t base = IntegerOr(bound[1], 10, "int");
  if (value.Is(Type::kUndefined)) Raise("{}", value.Text());
  if (value.IsInteger()) return Value::Int(value.integer);
  std::optional<double> real;
  if (value.Is(Type::kString)) {
    if (const auto parsed = ParseInteger(value.Text(), base)) {
      return Value::Int(*parsed);
    }
    real = ParseFloat(value.Text());  // so that "42.23" is 42
    if (real && std::isinf(*real)) real.reset();
  } else if (value.Is(Type::kFloat)) {
    real = value.real;
  }
  if (real && !std::isnan(*real)) return Value::Int(Truncated(*real));
  return bound[0] ? *bound[0] : Value::Int(0);
}

Value FloatFilter(const Value& value, Args& args) {
  const auto bound = Bind(args, "float", {"default"});
  if (value.Is(Type::kUndefined)) Raise("{}", value.Text());
  if (value.IsNumber()) return Value::Float(value.AsDouble());
  if (value.Is(Type::kString)) {
    if (const auto parsed = ParseFloat(value.Text())) return Value::Float(*parsed);
  }
  return bound[0] ? *bound[0] : Value::Float(0);
}

Value Abs(const Value& value, Args& args) {
  Bind(args, "abs", {});
  if (value.Is(Type::kFloat)) return Value::Float(std::fabs(value.real));
  if (!value.IsInteger()) Raise("abs takes a number");
  return value.integer < 0 ? Binary("-", Value::Int(0), value) : Value::Int(value.integer);
}

// round(value, precision): half to even, of the number as it is and not as it is written.
Value RoundHalfEven(const Value& value, int64_t precision) {
  if (value.IsInteger()) {
    if (precision >= 0) return Value::Int(value.integer);
    if (precision == INT64_MIN) RaiseUnsupported("an integer beyond 64 bits");
    const Value unit = Binary("**", Value::Int(10), Value::Int(-precision));
    const Value half = Binary("//", unit, Value::Int(2));
    Value down = Binary("*", Binary("//", value, unit), unit);
    const int order = Compare(Binary("-", value, down), half);
    const bool odd = Equal(Binary("%", Binary("//", value, unit), Value::Int(2)), Value::Int(1));
    return order > 0 || (order == 0 && odd) ? Binary("+", down, unit) : down;
  }
  if (precision < 0) RaiseUnsupported("round of a float to tens");
  if (!std::isfinite(value.real) || precision > 330) return value;
  char buffer[1024];
  std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), value.real);
  return Value::Float(std::strtod(buffer, nullptr));
}

Value Round(const Value& value, Args& args) {
  const auto bound = Bind(args, "round", {"precision", "method"});
  const std::string method = bound[1] ? Str(*bound[1]) : "common";
  if (method != "common" && method != "ceil" && method != "floor") {
    Raise("method must be common, ceil or floor");
  }
  const int64_t precision = IntegerOr(bound[0], 0, "round");
  if (value.Is(Type::kUndefined)) Raise("{}", value.Text());
  if (!value.IsNumber()) Raise("round takes a number, not {}", TypeName(value));
  if (method == "common") return RoundHalfEven(value, precision);
  const Value unit = Binary("**", Value::Int(10), Value::Int(precision));
  const double scaled = Binary("*", value, unit).AsDouble();
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  if (std::isnan(whole)) Raise("cannot convert float NaN to integer");
  return Binary("/", Value::Int(Truncated(whole)), unit);
}

}  // namespace

const Filters& NumberFilters() {
  static const Filters filters = {
      {"int", IntFilter}, {"float", FloatFilter}, {"abs", Abs}, {"round", Round}};
  return filters;
}

}  // namespace kvcake::jinja
