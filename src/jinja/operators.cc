#include <cmath>

#include "base/utf8.h"
#include "jinja/format.h"
#include "jinja/value.h"

namespace kvcake::jinja {
namespace {

[[noreturn]] void RaiseOperands(std::string_view op, const Value& a, const Value& b) {
  if (a.Is(Type::kUndefined)) Raise("{}", a.Text());
  if (b.Is(Type::kUndefined)) Raise("{}", b.Text());
  if (a.Is(Type::kSequence) || b.Is(Type::kSequence)) {  // sets have operators
    RaiseUnsupported("{} of '{}' and '{}'", op, TypeName(a), TypeName(b));
  }
  Raise("unsupported operand type(s) for {}: '{}' and '{}'", op, TypeName(a), TypeName(b));
}

[[noreturn]] void RaiseBig() { RaiseUnsupported("an integer beyond 64 bits"); }

Value IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) Raise("zero cannot be raised to a negative power");
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  if (base == 0 || base == 1) return Value::Int(exponent == 0 ? 1 : base);
  if (base == -1) return Value::Int(exponent % 2 ? -1 : 1);
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) RaiseBig();
  }
  return Value::Int(result);
}

Value Integers(std::string_view op, int64_t a, int64_t b) {
  int64_t out = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &out)) RaiseBig();
    return Value::Int(out);
  }
  if (op == "-") {
    if (__builtin_sub_overflow(a, b, &out)) RaiseBig();
    return Value::Int(out);
  }
  if (op == "*") {
    if (__builtin_mul_overflow(a, b, &out)) RaiseBig();
    return Value::Int(out);
  }
  if (op == "**") return IntegerPower(a, b);
  if (b == 0) Raise("division by zero");
  if (op == "/") {
    constexpr int64_t kExact = int64_t{1} << 53;
    if (a > kExact || a < -kExact || b > kExact || b < -kExact)
      RaiseUnsupported("/ of integers beyond 53 bits");
    return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  }
  if (b == -1) return op == "%" ? Value::Int(0) : Integers("-", 0, a);
  const int64_t rest = a % b;
  const bool down = rest != 0 && (rest < 0) != (b < 0);
  if (op == "%") return Value::Int(down ? rest + b : rest);
  return Value::Int(a / b - (down ? 1 : 0));
}

Value Floats(std::string_view op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "**") {
    if (a == 0 && b < 0) Raise("zero cannot be raised to a negative power");
    if (a < 0 && b != std::floor(b)) RaiseUnsupported("a complex number");
    const double power = std::pow(a, b);
    if (std::isinf(power) && !std::isinf(a) && !std::isinf(b))
      Raise("numerical result out of range");
    return Value::Float(power);
  }
  if (b == 0) Raise("float division by zero");
  if (op == "/") return Value::Float(a / b);
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
    quotient -= 1;
  } else if (rest == 0) {
    rest = std::copysign(0.0, b);
  }
  if (op == "%") return Value::Float(rest);
  if (quotient == 0) return Value::Float(std::copysign(0.0, a / b));
  double floor = std::floor(quotient);
  if (quotient - floor > 0.5) floor += 1;
  return Value::Float(floor);
}

Value Repeat(const Value& what, int64_t count) {
  const uint64_t times = count > 0 ? static_cast<uint64_t>(count) : 0;
  const bool is_text = what.Is(Type::kString);
  const uint64_t size = is_text ? what.Text().size() : what.List().size();
  if (size == 0 || times == 0) {
    return is_text ? Value::String("", what.safe) : Value::List({}, what.type);
  }
  Budget::CheckSize(times);
  Budget::CheckSize(times * size * (is_text ? 1 : sizeof(Value)));
  Budget::Spend(times);
  std::string text;
  Values values;
  for (uint64_t i = 0; i < times; ++i) {
    if (is_text) {
      text += what.Text();
    } else {
      values.insert(values.end(), what.List().begin(), what.List().end());
    }
  }
  return is_text ? Value::String(std::move(text), what.safe)
                 : Value::List(std::move(values), what.type);
}

bool Clamped(const Value& bound, int64_t size, int64_t low, int64_t high, int64_t* out) {
  if (bound.Is(Type::kNone)) return false;
  if (!bound.IsInteger()) Raise("slice indices must be integers or None");
  int64_t at = bound.integer;
  if (at < 0) at = at < -size ? low : at + size;
  *out = std::clamp(at, low, high);
  return true;
}

}  // namespace

Value Binary(std::string_view op, const Value& a, const Value& b) {
  if (a.IsInteger() && b.IsInteger()) return Integers(op, a.integer, b.integer);
  if (a.IsNumber() && b.IsNumber()) return Floats(op, a.AsDouble(), b.AsDouble());
  if (op == "+" && a.Is(Type::kString) && b.Is(Type::kString)) {
    Budget::CheckSize(a.Text().size() + b.Text().size());
    if (a.safe == b.safe) return Value::String(a.Text() + b.Text(), a.safe);
    return Value::String(
        (a.safe ? a.Text() : EscapeHtml(a.Text())) + (b.safe ? b.Text() : EscapeHtml(b.Text())),
        true);
  }
  if (op == "+" && a.type == b.type && (a.Is(Type::kList) || a.Is(Type::kTuple))) {
    Budget::Spend((a.List().size() + b.List().size()) / 4);
    Values values = a.List();
    values.insert(values.end(), b.List().begin(), b.List().end());
    return Value::List(std::move(values), a.type);
  }
  const auto repeats = [](const Value& v) {
    return v.Is(Type::kString) || v.Is(Type::kList) || v.Is(Type::kTuple);
  };
  if (op == "*" && repeats(a) && b.IsInteger()) return Repeat(a, b.integer);
  if (op == "*" && repeats(b) && a.IsInteger()) return Repeat(b, a.integer);
  if (op == "%" && a.Is(Type::kString)) {
    if (a.safe) RaiseUnsupported("% of safe text");
    return Value::String(FormatPercent(a.Text(), b));
  }
  RaiseOperands(op, a, b);
}

Value Call(const Value& callee, Args& args) {
  const DepthGuard guard;
  if (callee.Is(Type::kUndefined)) Raise("{}", callee.Text());
  if (callee.Is(Type::kCallable)) return static_cast<CallableObject&>(*callee.object).call(args);
  if (callee.Is(Type::kObject)) {
    const auto& call = static_cast<AttributesObject&>(*callee.object).call;
    if (call) return call(args);
  }
  Raise("'{}' object is not callable", TypeName(callee));
}

Value GetAttribute(const Value& object, const std::string& name) {
  if (object.Is(Type::kUndefined)) Raise("{}", object.Text());
  if (name.starts_with("__")) RaiseUnsupported("the attribute {}", name);
  if (object.Is(Type::kObject)) return static_cast<AttributesObject&>(*object.object).get(name);
  Value method;
  if (FindMethod(object, name, &method)) return method;
  if (object.Is(Type::kDict) || object.Is(Type::kNamespace)) {
    if (const Value* found = object.Find(name)) return *found;
  }
  if (object.Is(Type::kCallable)) RaiseUnsupported("the attribute {} of a function", name);
  return Value::Undefined(fmt::format("'{}' object has no attribute '{}'", TypeName(object), name));
}

Value GetItem(const Value& object, const Value& key) {
  if (object.Is(Type::kUndefined)) Raise("{}", object.Text());
  if (object.Is(Type::kDict)) {
    if (key.Is(Type::kList) || key.Is(Type::kDict)) {
      return Value::Undefined("a key is not hashable");
    }
    if (const Value* found = object.Find(key)) return *found;
  }
  const bool indexed = object.Is(Type::kString) || object.Is(Type::kList) ||
                       object.Is(Type::kTuple) ||
                       (object.Is(Type::kSequence) && object.Kind().starts_with("range"));
  if (indexed && key.IsInteger()) {
    const int64_t size = Length(object);
    const int64_t at = key.integer < 0 ? key.integer + size : key.integer;
    if (at < 0 || at >= size) return Value::Undefined("an index is out of range");
    if (!object.Is(Type::kString)) return object.List()[at];
    return Value::String(FromCodes(ToCodes(object.Text()).substr(at, 1)), object.safe);
  }
  if (key.Is(Type::kString)) return GetAttribute(object, key.Text());
  return Value::Undefined(
      fmt::format("'{}' object has no element {}", TypeName(object), Repr(key)));
}

Value Slice(const Value& object, const Value& begin, const Value& end, const Value& step) {
  if (object.Is(Type::kUndefined)) Raise("{}", object.Text());
  if (object.Is(Type::kSequence)) RaiseUnsupported("a slice of {}", object.Kind());
  const bool is_text = object.Is(Type::kString);
  if (!is_text && !object.IsListLike()) {
    // jinja2 raises, but makes it undefined where the object is a constant.
    RaiseUnsupported("a slice of '{}'", TypeName(object));
  }
  if (!step.Is(Type::kNone) && !step.IsInteger()) Raise("slice indices must be integers or None");
  const int64_t by = step.Is(Type::kNone) ? 1 : step.integer;
  if (by == 0) Raise("slice step cannot be zero");
  const std::u32string codes = is_text ? ToCodes(object.Text()) : std::u32string();
  const auto size = static_cast<int64_t>(is_text ? codes.size() : object.List().size());
  int64_t from = by > 0 ? 0 : size - 1;
  int64_t to = by > 0 ? size : -1;
  Clamped(begin, size, by > 0 ? 0 : -1, by > 0 ? size : size - 1, &from);
  Clamped(end, size, by > 0 ? 0 : -1, by > 0 ? size : size - 1, &to);
  std::u32string text;
  Values values;
  for (__int128 i = from; by > 0 ? i < to : i > to; i += by) {
    if (is_text) {
      text += codes[static_cast<size_t>(i)];
    } else {
      values.push_back(object.List()[static_cast<size_t>(i)]);
    }
  }
  return is_text ? Value::String(FromCodes(text), object.safe)
                 : Value::List(std::move(values), object.type);
}

}  // namespace kvcake::jinja
