#include "jinja/value.h"

#include <cmath>

#include "base/utf8.h"
#include "jinja/text.h"

namespace kvcake::jinja {
namespace {

constexpr int kMaxNesting = 200;    // of lists and dictionaries
constexpr size_t kObjectSteps = 2;  // of one: as much memory as two values

int NestingOf(const Value& value) {
  if (value.IsListLike()) return static_cast<ListObject&>(*value.object).depth;
  if (value.Is(Type::kDict)) return static_cast<DictObject&>(*value.object).depth;
  return 0;
}

void AddNesting(const Value& value, int* depth) {
  *depth = std::max(*depth, NestingOf(value) + 1);
  if (*depth > kMaxNesting) Raise("lists are nested more than {} deep", kMaxNesting);
}

void CheckHashable(const Value& key) {
  if (key.Is(Type::kList) || key.Is(Type::kDict)) Raise("unhashable type: '{}'", TypeName(key));
  if (!key.Is(Type::kTuple)) return;
  for (const Value& part : key.List()) CheckHashable(part);
}

}  // namespace

Budget*& Budget::Current() {
  static thread_local Budget* current = nullptr;
  return current;
}
void Budget::Spend(uint64_t steps) {
  Budget* budget = Current();
  if (!budget) return;
  if (budget->steps < steps) {
    throw Failure{ErrorCode::kResourceExhausted, "the template takes more steps than it may"};
  }
  budget->steps -= steps;
}
void Budget::SpendOnSearch(size_t text, size_t word) {
  Spend(uint64_t{text / 256} * (1 + word / 256));
}
void Budget::CheckSize(uint64_t bytes) {
  if (Current() && bytes > Current()->bytes) {
    throw Failure{ErrorCode::kResourceExhausted, "the template makes more text than it may"};
  }
}
DepthGuard::DepthGuard() {
  Budget* budget = Budget::Current();
  if (!budget) return;
  if (budget->depth <= 0) {
    throw Failure{ErrorCode::kResourceExhausted, "the template nests deeper than it may"};
  }
  --budget->depth;
}
DepthGuard::~DepthGuard() {
  if (Budget::Current()) ++Budget::Current()->depth;
}

Value Value::Undefined(std::string what) {
  Value value = String(std::move(what));
  value.type = Type::kUndefined;
  return value;
}
Value Value::None() {
  Value value;
  value.type = Type::kNone;
  return value;
}
Value Value::Bool(bool b) {
  Value value;
  value.type = Type::kBool;
  value.integer = b;
  return value;
}
Value Value::Int(int64_t i) {
  Value value;
  value.type = Type::kInt;
  value.integer = i;
  return value;
}
Value Value::Float(double d) {
  Value value;
  value.type = Type::kFloat;
  value.real = d;
  return value;
}
Value Value::String(std::string text, bool safe) {
  Budget::CheckSize(text.size());
  Budget::Spend(text.size() / 64);
  auto object = std::make_shared<StringObject>();
  object->text = std::move(text);
  Value value;
  value.type = Type::kString;
  value.safe = safe;
  value.object = std::move(object);
  return value;
}
Value Value::List(Values values, Type type, std::string kind) {
  Budget::CheckSize(values.size() * sizeof(Value));
  Budget::Spend(kObjectSteps + values.size());
  auto object = std::make_shared<ListObject>();
  for (const Value& item : values) AddNesting(item, &object->depth);
  object->values = std::move(values);
  object->kind = std::move(kind);
  Value value;
  value.type = type;
  value.object = std::move(object);
  return value;
}
Value Value::Dict(Items items) {
  Budget::Spend(kObjectSteps + 2 * items.size());
  auto object = std::make_shared<DictObject>();
  for (const auto& item : items) {
    AddNesting(item.first, &object->depth);
    AddNesting(item.second, &object->depth);
  }
  object->items = std::move(items);
  Value value;
  value.type = Type::kDict;
  value.object = std::move(object);
  return value;
}
Value Value::Callable(std::string name, std::function<Value(Args&)> call) {
  auto object = std::make_shared<CallableObject>();
  object->name = std::move(name);
  object->call = std::move(call);
  Value value;
  value.type = Type::kCallable;
  value.object = std::move(object);
  return value;
}

Value Value::FromJson(const nlohmann::ordered_json& json) {
  const DepthGuard guard;
  Budget::Spend(1);
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return Bool(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) Raise("integers beyond 64 bits are not known");
      [[fallthrough]];
    case nlohmann::ordered_json::value_t::number_integer:
      return Int(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return Float(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return String(json.get<std::string>());
    case nlohmann::ordered_json::value_t::array: {
      Values values;
      for (const auto& item : json) values.push_back(FromJson(item));
      return List(std::move(values));
    }
    case nlohmann::ordered_json::value_t::object: {
      Items items;
      for (const auto& item : json.items()) {
        items.emplace_back(String(item.key()), FromJson(item.value()));
      }
      return Dict(std::move(items));
    }
    default:
      return None();
  }
}

const std::string& Value::Text() const { return static_cast<StringObject&>(*object).text; }
Values& Value::List() const { return static_cast<ListObject&>(*object).values; }
const std::string& Value::Kind() const { return static_cast<ListObject&>(*object).kind; }
Items& Value::Dict() const { return static_cast<DictObject&>(*object).items; }

bool Value::Truth() const {
  switch (type) {
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
    case Type::kInt:
      return integer != 0;
    case Type::kFloat:
      return real != 0;
    case Type::kString:
      return !Text().empty();
    case Type::kSequence:
      return Kind() == "generator" || !List().empty();
    case Type::kList:
    case Type::kTuple:
      return !List().empty();
    case Type::kDict:
      return !Dict().empty();
    default:
      return true;
  }
}

const Value* Value::Find(const Value& key) const {
  if (key.Is(Type::kString)) return Find(key.Text());
  CheckHashable(key);
  for (const auto& item : Dict()) {
    if (Equal(item.first, key)) return &item.second;
  }
  return nullptr;
}
const Value* Value::Find(std::string_view key) const {
  Budget::Spend(Dict().size() / 8 + key.size() / 256);
  for (const auto& item : Dict()) {
    if (item.first.Is(Type::kString) && item.first.Text() == key) return &item.second;
  }
  return nullptr;
}

std::string_view TypeName(const Value& value) {
  static constexpr std::string_view kNames[] = {
      "Undefined", "NoneType", "bool", "int",       "float",    "str",   "list",
      "tuple",     "sequence", "dict", "Namespace", "function", "object"};
  return kNames[static_cast<int>(value.type)];
}

bool Equal(const Value& a, const Value& b) {
  const DepthGuard guard;
  Budget::Spend(1);
  if (a.IsNumber() && b.IsNumber()) {
    return a.IsInteger() && b.IsInteger() ? a.integer == b.integer : a.AsDouble() == b.AsDouble();
  }
  if (a.type != b.type) return false;
  switch (a.type) {
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kString:
      Budget::Spend(a.Text().size() / 256);
      return a.Text() == b.Text();
    case Type::kList:
    case Type::kTuple:
      return std::equal(a.List().begin(), a.List().end(), b.List().begin(), b.List().end(), Equal);
    case Type::kDict:
      if (a.Dict().size() != b.Dict().size()) return false;
      for (const auto& [key, value] : a.Dict()) {
        const Value* other = b.Find(key);
        if (!other || !Equal(value, *other)) return false;
      }
      return true;
    case Type::kSequence:
      if (a.object != b.object) RaiseUnsupported("comparing {}", a.Kind());
      return true;
    default:
      return a.object == b.object;
  }
}

int Compare(const Value& a, const Value& b) {
  const DepthGuard guard;
  Budget::Spend(1);
  if (a.IsInteger() && b.IsInteger()) return (a.integer > b.integer) - (a.integer < b.integer);
  if (a.IsNumber() && b.IsNumber()) {
    if (std::isnan(a.AsDouble()) || std::isnan(b.AsDouble())) RaiseUnsupported("comparing nan");
    return (a.AsDouble() > b.AsDouble()) - (a.AsDouble() < b.AsDouble());
  }
  if (a.Is(Type::kString) && b.Is(Type::kString)) {
    Budget::Spend(std::min(a.Text().size(), b.Text().size()) / 256);
    const int order = a.Text().compare(b.Text());
    return (order > 0) - (order < 0);
  }
  if (a.type == b.type && (a.Is(Type::kList) || a.Is(Type::kTuple))) {
    for (size_t i = 0; i < a.List().size() && i < b.List().size(); ++i) {
      if (!Equal(a.List()[i], b.List()[i])) return Compare(a.List()[i], b.List()[i]);
    }
    return Compare(Value::Int(a.List().size()), Value::Int(b.List().size()));
  }
  if (a.Is(Type::kUndefined)) Raise("{}", a.Text());
  if (b.Is(Type::kUndefined)) Raise("{}", b.Text());
  Raise("'{}' and '{}' have no order", TypeName(a), TypeName(b));
}

bool Contains(const Value& item, const Value& container) {
  if (container.Is(Type::kString)) {
    if (!item.Is(Type::kString)) Raise("a string has only strings in it, not {}", TypeName(item));
    Budget::SpendOnSearch(container.Text().size(), item.Text().size());
    return container.Text().find(item.Text()) != std::string::npos;
  }
  if (container.Is(Type::kDict)) return container.Find(item) != nullptr;
  if (container.IsGenerator()) {  // up to the item, which is taken out
    Values& remaining = RemainingOf(container);
    const auto found =
        std::ranges::find_if(remaining, [&](const Value& v) { return Equal(v, item); });
    const bool finds = found != remaining.end();
    remaining.erase(remaining.begin(), finds ? found + 1 : found);
    return finds;
  }
  for (const Value& value : Iterate(container)) {
    if (Equal(value, item)) return true;
  }
  return false;
}

void Leave(const Value& generator) { static_cast<ListObject&>(*generator.object).left = true; }

Values& RemainingOf(const Value& generator) {
  auto& object = static_cast<ListObject&>(*generator.object);
  if (object.left) RaiseUnsupported("what remains of a generator that a loop has left by break");
  return object.values;
}

Values Iterate(const Value& value) {
  Values out;
  if (value.IsListLike()) {
    Budget::Spend(value.List().size() / 4);
    if (value.IsGenerator()) {
      std::swap(out, RemainingOf(value));
      return out;
    }
    return value.List();
  }
  if (value.Is(Type::kString)) {
    for (const char32_t code : ToCodes(value.Text())) {
      std::string text;
      AppendUtf8(code, &text);
      Budget::Spend(1);
      out.push_back(Value::String(std::move(text)));
    }
    return out;
  }
  if (value.Is(Type::kDict)) {
    for (const auto& item : value.Dict()) out.push_back(item.first);
    Budget::Spend(out.size() / 4);
    return out;
  }
  if (value.Is(Type::kUndefined)) return out;
  Raise("'{}' object is not iterable", TypeName(value));
}

int64_t Length(const Value& value) {
  if (value.Is(Type::kUndefined)) return 0;
  if (value.Is(Type::kString)) return static_cast<int64_t>(ToCodes(value.Text()).size());
  if (value.Is(Type::kDict)) return static_cast<int64_t>(value.Dict().size());
  if (value.IsListLike() && !(value.Is(Type::kSequence) && value.Kind() == "generator")) {
    return static_cast<int64_t>(value.List().size());
  }
  Raise("object of type '{}' has no len()", TypeName(value));
}

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '\'')
      out += "&#39;";
    else if (c == '"')
      out += "&#34;";
    else
      out += c;
  }
  return out;
}

std::u32string ToCodes(std::string_view text) {
  Budget::Spend(text.size() / 16);
  std::u32string out;
  while (!text.empty()) {
    size_t size = 0;
    out += DecodeUtf8(text, &size);
    text.remove_prefix(size);
  }
  return out;
}
std::string FromCodes(std::u32string_view codes) {
  std::string out;
  for (const char32_t code : codes) AppendUtf8(code, &out);
  return out;
}
bool IsSpaceCode(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::vector<const Value*> Bind(const Args& args, std::string_view what,
                               std::initializer_list<std::string_view> names) {
  std::vector<const Value*> out(names.size());
  if (args.values.size() > names.size())
    Raise("{}() takes at most {} arguments", what, names.size());
  for (size_t i = 0; i < args.values.size(); ++i) out[i] = &args.values[i];
  for (const auto& [name, value] : args.named) {
    const auto* const found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) Raise("{}() has no argument {}", what, name);
    if (out[found - names.begin()]) Raise("{}() has two values for {}", what, name);
    out[found - names.begin()] = &value;
  }
  return out;
}

int64_t IntegerOf(const Value* value, std::string_view what) {
  if (!value) Raise("{} takes an integer", what);
  if (!value->IsInteger()) Raise("{} takes an integer, not {}", what, TypeName(*value));
  return value->integer;
}
int64_t IntegerOr(const Value* value, int64_t otherwise, std::string_view what) {
  return value ? IntegerOf(value, what) : otherwise;
}

}  // namespace kvcake::jinja
