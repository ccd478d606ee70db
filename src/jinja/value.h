// What an expression of a template makes: Python's values, as far as templates see them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvcake::jinja {

// Unwinds the evaluator and the parser; Parse and Render catch it.
struct Failure {
  ErrorCode code;
  std::string message;
};

template <typename... Args>
[[noreturn]] void Raise(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
[[noreturn]] void RaiseUnsupported(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{ErrorCode::kUnsupported, fmt::format(format, std::forward<Args>(args)...)};
}

// What one rendering may still use up. One is installed per thread while a template is rendered.
struct Budget {
  uint64_t steps;
  int depth;
  size_t bytes;  // of one string, or of the output

  static Budget*& Current();
  static void Spend(uint64_t steps);
  // Pays for looking for a word of so many bytes at each place of a text.
  static void SpendOnSearch(size_t text, size_t word);
  static void CheckSize(uint64_t bytes);
};

class DepthGuard {
 public:
  DepthGuard();
  ~DepthGuard();
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;
};

enum class Type {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kSequence,  // range, dictionary views and generators: what they are is in the list's kind
  kDict,
  kNamespace,
  kCallable,
  kObject,  // loop, cycler: attributes only
};

struct Value;
using Values = std::vector<Value>;
using Items = std::vector<std::pair<Value, Value>>;
struct Args {
  Values values;
  std::vector<std::pair<std::string, Value>> named;
};
struct Object {
  virtual ~Object() = default;
};

struct Value {
  Type type = Type::kUndefined;
  bool safe = false;  // a string of markupsafe's Markup
  int64_t integer = 0;
  double real = 0;
  std::shared_ptr<Object> object;

  static Value Undefined(std::string what);
  static Value None();
  static Value Bool(bool value);
  static Value Int(int64_t value);
  static Value Float(double value);
  static Value String(std::string text, bool safe = false);
  static Value List(Values values, Type type = Type::kList, std::string kind = "");
  static Value Dict(Items items);
  static Value Callable(std::string name, std::function<Value(Args&)> call);
  static Value FromJson(const nlohmann::ordered_json& json);

  bool Is(Type other) const { return type == other; }
  bool IsNumber() const { return type >= Type::kBool && type <= Type::kFloat; }
  bool IsInteger() const { return type == Type::kBool || type == Type::kInt; }
  bool IsListLike() const { return type >= Type::kList && type <= Type::kSequence; }
  bool IsGenerator() const { return Is(Type::kSequence) && Kind() == "generator"; }
  double AsDouble() const { return type == Type::kFloat ? real : static_cast<double>(integer); }
  const std::string& Text() const;
  Values& List() const;
  const std::string& Kind() const;  // of a kSequence
  Items& Dict() const;              // of a dictionary or namespace
  bool Truth() const;
  const Value* Find(const Value& key) const;  // in a dictionary
  const Value* Find(std::string_view key) const;
};

struct StringObject : Object {
  std::string text;
};
struct ListObject : Object {
  Values values;
  std::string kind;
  bool left = false;  // a generator
  int depth = 0;
};
struct DictObject : Object {
  Items items;
  int depth = 0;
};
struct CallableObject : Object {
  std::string name;
  std::function<Value(Args&)> call;
};
// Attributes by name; call is empty where it cannot be called.
struct AttributesObject : Object {
  std::function<Value(const std::string&)> get;
  std::function<Value(Args&)> call;
};

std::string_view TypeName(const Value& value);  // Python's
std::string Str(const Value& value);
std::string Repr(const Value& value);
bool Equal(const Value& a, const Value& b);
int Compare(const Value& a, const Value& b);  // raises where Python would
bool Contains(const Value& item, const Value& container);
Values Iterate(const Value& value);  // a generator can be iterated once
// Marks a generator that a loop has left before its end: how much remains depends on whether the
// loop has looked ahead, and to ask for it again is an error.
void Leave(const Value& generator);
// What a generator has not given yet.
Values& RemainingOf(const Value& generator);
int64_t Length(const Value& value);
std::string ToJson(const Value& value, const Args& args);
std::string FloatRepr(double value);
std::string EscapeHtml(std::string_view text);

Value GetAttribute(const Value& object, const std::string& name);
Value GetItem(const Value& object, const Value& key);
Value Slice(const Value& object, const Value& begin, const Value& end, const Value& step);
Value Binary(std::string_view op, const Value& a, const Value& b);
Value Call(const Value& callee, Args& args);

std::u32string ToCodes(std::string_view text);
std::string FromCodes(std::u32string_view codes);
bool IsSpaceCode(char32_t code);

// The arguments by parameter name; those not given are null pointers. Raises for others.
std::vector<const Value*> Bind(const Args& args, std::string_view what,
                               std::initializer_list<std::string_view> names);

// An argument that is an integer. Raises for others, `what` being whose it is; IntegerOf also where
// it is not given.
int64_t IntegerOf(const Value* value, std::string_view what);
int64_t IntegerOr(const Value* value, int64_t otherwise, std::string_view what);

// Nothing (an Undefined without object) where the type has no method of the name.
bool FindMethod(const Value& object, const std::string& name, Value* method);

using Function = Value (*)(const Value& value, Args& args);
Function FindFilter(std::string_view name);  // null where there is none
Function FindTest(std::string_view name);

}  // namespace kvcake::jinja
