#include <map>

#include "jinja/text.h"
#include "jinja/value.h"

namespace kvcake::jinja {
namespace {

bool IsMapping(const Value& v) { return v.Is(Type::kDict); }
bool IsIterable(const Value& v) {
  return v.Is(Type::kString) || v.IsListLike() || v.Is(Type::kDict) || v.Is(Type::kUndefined);
}
// What has a length and items by key; a generator has neither.
bool IsSequence(const Value& v) {
  return v.Is(Type::kString) || v.Is(Type::kList) || v.Is(Type::kTuple) || v.Is(Type::kDict) ||
         v.Is(Type::kUndefined) || (v.Is(Type::kSequence) && v.Kind().starts_with("range"));
}
bool IsInteger(const Value& v) { return v.Is(Type::kInt); }
bool IsTrue(const Value& v) { return v.Is(Type::kBool) && v.integer; }
bool IsFalse(const Value& v) { return v.Is(Type::kBool) && !v.integer; }
bool IsDefined(const Value& v) { return !v.Is(Type::kUndefined); }
bool IsUndefined(const Value& v) { return v.Is(Type::kUndefined); }
bool IsNumber(const Value& v) { return v.IsNumber(); }
bool IsCallable(const Value& v) {
  return v.Is(Type::kCallable) || (v.Is(Type::kUndefined));  // Undefined has a __call__
}
template <bool (*holds)(std::string_view)>
bool OfText(const Value& v) {
  return holds(Str(v));
}
template <Type type>
bool IsType(const Value& v) {
  return v.Is(type);
}
bool IsOdd(const Value& v) { return Equal(Binary("%", v, Value::Int(2)), Value::Int(1)); }
bool IsEven(const Value& v) { return Equal(Binary("%", v, Value::Int(2)), Value::Int(0)); }

template <bool (*holds)(const Value&)>
Value Unary(const Value& value, Args& args) {
  Bind(args, "the test", {});
  return Value::Bool(holds(value));
}

bool Divides(const Value& a, const Value& b) { return Equal(Binary("%", a, b), Value::Int(0)); }
bool IsSame(const Value& a, const Value& b) {
  const auto single = [](const Value& v) { return v.Is(Type::kNone) || v.Is(Type::kBool); };
  if (single(a) || single(b)) return a.type == b.type && a.integer == b.integer;
  if (a.object && a.object == b.object) return true;
  RaiseUnsupported("sameas of a {}", TypeName(a));
}
bool NotEqual(const Value& a, const Value& b) { return !Equal(a, b); }
bool Less(const Value& a, const Value& b) { return Compare(a, b) < 0; }
bool LessEqual(const Value& a, const Value& b) { return Compare(a, b) <= 0; }
bool Greater(const Value& a, const Value& b) { return Compare(a, b) > 0; }
bool GreaterEqual(const Value& a, const Value& b) { return Compare(a, b) >= 0; }

template <bool (*holds)(const Value&, const Value&)>
Value WithOther(const Value& value, Args& args) {
  const auto bound = Bind(args, "the test", {"other"});
  if (!bound[0]) Raise("the test takes an argument");
  return Value::Bool(holds(value, *bound[0]));
}

}  // namespace

Function FindTest(std::string_view name) {
  static const std::map<std::string_view, Function> tests = {
      {"defined", Unary<IsDefined>},
      {"undefined", Unary<IsUndefined>},
      {"none", Unary<IsType<Type::kNone>>},
      {"string", Unary<IsType<Type::kString>>},
      {"mapping", Unary<IsMapping>},
      {"iterable", Unary<IsIterable>},
      {"sequence", Unary<IsSequence>},
      {"number", Unary<IsNumber>},
      {"integer", Unary<IsInteger>},
      {"float", Unary<IsType<Type::kFloat>>},
      {"boolean", Unary<IsType<Type::kBool>>},
      {"true", Unary<IsTrue>},
      {"false", Unary<IsFalse>},
      {"callable", Unary<IsCallable>},
      {"upper", Unary<OfText<IsUpper>>},
      {"lower", Unary<OfText<IsLower>>},
      {"odd", Unary<IsOdd>},
      {"even", Unary<IsEven>},
      {"divisibleby", WithOther<Divides>},
      {"sameas", WithOther<IsSame>},
      {"in", WithOther<Contains>},
      {"eq", WithOther<Equal>},
      {"equalto", WithOther<Equal>},
      {"==", WithOther<Equal>},
      {"ne", WithOther<NotEqual>},
      {"!=", WithOther<NotEqual>},
      {"lt", WithOther<Less>},
      {"lessthan", WithOther<Less>},
      {"<", WithOther<Less>},
      {"le", WithOther<LessEqual>},
      {"<=", WithOther<LessEqual>},
      {"gt", WithOther<Greater>},
      {"greaterthan", WithOther<Greater>},
      {">", WithOther<Greater>},
      {"ge", WithOther<GreaterEqual>},
      {">=", WithOther<GreaterEqual>},
  };
  const auto found = tests.find(name);
  return found == tests.end() ? nullptr : found->second;
}

}  // namespace kvcake::jinja
