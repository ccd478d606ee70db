#include <algorithm>
#include <cmath>
#include <map>

#include "jinja/text.h"
#include "jinja/value.h"

namespace kvcake::jinja {
namespace {

Value Text(std::string text) { return Value::String(std::move(text)); }

// Filters of text would have to say what becomes of Markup; trim and string keep it.
std::string Plain(const Value& value, const char* what) {
  if (value.safe) RaiseUnsupported("the filter {} of safe text", what);
  return Str(value);
}

Value Generator(Values values) {
  return Value::List(std::move(values), Type::kSequence, "generator");
}

// "a.b.0" of an item, as map(attribute=...) and the like have it.
Value AttributeOf(Value item, const Value& path) {
  if (path.IsInteger()) return GetItem(item, path);
  std::string rest = Str(path);
  while (true) {
    const size_t dot = rest.find('.');
    const std::string name = rest.substr(0, dot);
    const bool digits =
        !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == name.npos;
    // environment.getitem: an item first, an attribute then.
    item = GetItem(item, digits ? Value::Int(std::stoll(name)) : Text(name));
    if (dot == rest.npos) return item;
    rest = rest.substr(dot + 1);
  }
}

Value Default(const Value& value, Args& args) {
  const auto bound = Bind(args, "default", {"default_value", "boolean"});
  const bool boolean = bound[1] && bound[1]->Truth();
  if (value.Is(Type::kUndefined) || (boolean && !value.Truth())) {
    return bound[0] ? *bound[0] : Text("");
  }
  return value;
}

Value LengthOf(const Value& value, Args& args) {
  Bind(args, "length", {});
  return Value::Int(Length(value));
}

Value Join(const Value& value, Args& args) {
  const auto bound = Bind(args, "join", {"d", "attribute"});
  const std::string sep = bound[0] ? Str(*bound[0]) : "";
  std::string out;
  bool first = true;
  for (const Value& item : Iterate(value)) {
    if (!std::exchange(first, false)) out += sep;
    const bool by = bound[1] && !bound[1]->Is(Type::kNone);
    out += Str(by ? AttributeOf(item, *bound[1]) : item);
    Budget::CheckSize(out.size());
  }
  return Text(std::move(out));
}

Value ToJsonFilter(const Value& value, Args& args) { return Text(ToJson(value, args)); }

Value Trim(const Value& value, Args& args) {
  const auto bound = Bind(args, "trim", {"chars"});
  const bool given = bound[0] && !bound[0]->Is(Type::kNone);
  if (given && !bound[0]->Is(Type::kString)) Raise("trim takes a string");
  return Value::String(Strip(Str(value), given ? &bound[0]->Text() : nullptr, Side::kBoth),
                       value.safe);
}

template <std::string (*map)(std::string_view)>
Value MapText(const Value& value, Args& args) {
  Bind(args, "the filter", {});
  return Text(map(Plain(value, "of case")));
}

Value ReplaceFilter(const Value& value, Args& args) {
  const auto bound = Bind(args, "replace", {"old", "new", "count"});
  if (!bound[0] || !bound[1]) Raise("replace takes two arguments");
  const int64_t count = bound[2] && bound[2]->IsInteger() ? bound[2]->integer : -1;
  return Text(Replace(Plain(value, "replace"), Str(*bound[0]), Str(*bound[1]), count));
}

// The filter or test that args[at] names, of its further arguments.
Value Apply(Function function, const Value& item, const Args& args, size_t at) {
  Args rest;
  rest.values.assign(args.values.begin() + static_cast<long>(at), args.values.end());
  rest.named = args.named;
  return function(item, rest);
}

Value MapFilter(const Value& value, Args& args) {
  if (!value.Truth()) return Generator({});  // none, too
  Values out;
  const bool by_attribute = args.values.empty();
  Function filter = nullptr;
  Value attribute, otherwise;
  if (by_attribute) {
    const auto bound = Bind(args, "map", {"attribute", "default"});
    if (!bound[0]) Raise("map requires a filter argument");
    attribute = *bound[0];
    if (bound[1]) otherwise = *bound[1];
  } else {
    filter = FindFilter(Str(args.values[0]));
    if (!filter) RaiseUnsupported("the filter {}", Str(args.values[0]));
  }
  for (const Value& item : Iterate(value)) {
    Budget::Spend(2);
    Value mapped = by_attribute ? AttributeOf(item, attribute) : Apply(filter, item, args, 1);
    if (by_attribute && mapped.Is(Type::kUndefined) && otherwise.object) mapped = otherwise;
    out.push_back(std::move(mapped));
  }
  return Generator(std::move(out));
}

template <bool keeps, bool by_attribute>
Value Select(const Value& value, Args& args) {
  if (!value.Truth()) return Generator({});  // none, too
  constexpr size_t kTestAt = by_attribute ? 1 : 0;
  if (args.values.size() < kTestAt) Raise("selectattr takes an attribute");
  Function test = nullptr;
  if (args.values.size() > kTestAt) {
    test = FindTest(Str(args.values[kTestAt]));
    if (!test) RaiseUnsupported("the test {}", Str(args.values[kTestAt]));
  }
  Values out;
  for (const Value& item : Iterate(value)) {
    Budget::Spend(2);
    const Value subject = by_attribute ? AttributeOf(item, args.values[0]) : item;
    const bool holds = test ? Apply(test, subject, args, kTestAt + 1).Truth() : subject.Truth();
    if (holds == keeps) out.push_back(item);
  }
  return Generator(std::move(out));
}

template <bool last>
Value End(const Value& value, Args& args) {
  Bind(args, "the filter", {});
  if (last && value.Is(Type::kSequence) && value.Kind() == "generator") {
    Raise("'generator' object is not reversible");
  }
  const Values values = Iterate(value);
  if (values.empty()) return Value::Undefined("No item, sequence was empty.");
  return last ? values.back() : values.front();
}

Value ListFilter(const Value& value, Args& args) {
  Bind(args, "list", {});
  return Value::List(Iterate(value));
}

Value ItemsFilter(const Value& value, Args& args) {
  Bind(args, "items", {});
  if (value.Is(Type::kUndefined)) return Generator({});
  if (!value.Is(Type::kDict)) Raise("Can only get item pairs from a mapping.");
  Values out;
  for (const auto& [key, item] : value.Dict()) {
    out.push_back(Value::List({key, item}, Type::kTuple));
  }
  return Generator(std::move(out));
}

Value StringFilter(const Value& value, Args& args) {
  Bind(args, "string", {});
  return value.Is(Type::kString) ? value : Text(Str(value));
}

Value Safe(const Value& value, Args& args) {
  Bind(args, "safe", {});
  return Value::String(Str(value), true);
}
Value Escape(const Value& value, Args& args) {
  Bind(args, "escape", {});
  return Value::String(value.safe ? Str(value) : EscapeHtml(Str(value)), true);
}

Value Abs(const Value& value, Args& args) {
  Bind(args, "abs", {});
  if (value.Is(Type::kFloat)) return Value::Float(std::fabs(value.real));
  if (!value.IsInteger()) Raise("abs takes a number");
  return value.integer < 0 ? Binary("-", Value::Int(0), value) : Value::Int(value.integer);
}

Value Reverse(const Value& value, Args& args) {
  Bind(args, "reverse", {});
  if (value.Is(Type::kString)) {
    return Slice(value, Value::None(), Value::None(), Value::Int(-1));
  }
  Values values = Iterate(value);
  return Generator(Values(values.rbegin(), values.rend()));
}

Value Indent(const Value& value, Args& args) {
  const auto bound = Bind(args, "indent", {"width", "first", "blank"});
  std::string pad(4, ' ');
  if (bound[0] && bound[0]->Is(Type::kString)) {
    pad = bound[0]->Text();
  } else if (bound[0]) {
    if (!bound[0]->IsInteger()) Raise("indent takes a number or a string");
    Budget::CheckSize(std::max<int64_t>(bound[0]->integer, 0));
    pad.assign(std::max<int64_t>(bound[0]->integer, 0), ' ');
  }
  if (!value.Is(Type::kString)) Raise("indent takes a string");
  const std::string text = Plain(value, "indent");
  if (text.find_first_of("\r\v\f\x1c\x1d\x1e") != text.npos || text.find("\xc2\x85") != text.npos ||
      text.find("\xe2\x80\xa8") != text.npos || text.find("\xe2\x80\xa9") != text.npos) {
    RaiseUnsupported("the filter indent of line ends other than \\n");
  }
  const bool blank = bound[2] && bound[2]->Truth();
  std::string out = bound[1] && bound[1]->Truth() ? pad : "";
  for (size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    if (text[i] != '\n') continue;
    const bool empty = i + 1 == text.size() || text[i + 1] == '\n';
    if (!empty || blank) out += pad;
    Budget::CheckSize(out.size());
  }
  return Text(std::move(out));
}

template <bool is_max>
Value Extreme(const Value& value, Args& args) {
  Bind(args, "min and max without arguments", {});
  const Values values = Iterate(value);
  if (values.empty()) return Value::Undefined("No aggregated item, sequence was empty.");
  const Value* best = &values[0];
  for (const Value& item : values) {
    if (item.Is(Type::kString)) RaiseUnsupported("min and max of strings");
    if (is_max ? Compare(item, *best) > 0 : Compare(item, *best) < 0) best = &item;
  }
  return *best;
}

Value IntFilter(const Value& value, Args& args) {
  const auto bound = Bind(args, "int", {"default", "base"});
  if (bound[1]) RaiseUnsupported("the filter int with a base");
  if (value.Is(Type::kUndefined)) Raise("{}", value.Text());
  if (value.IsInteger()) return Value::Int(value.integer);
  if (value.Is(Type::kFloat) && std::fabs(value.real) < 9e18) {
    return Value::Int(static_cast<int64_t>(value.real));
  }
  if (value.Is(Type::kString)) {
    const std::string text = Strip(value.Text(), nullptr, Side::kBoth);
    const std::string digits = text.substr(text.starts_with('-') ? 1 : 0);
    if (!digits.empty() && digits.size() < 19 &&
        digits.find_first_not_of("0123456789") == digits.npos) {
      return Value::Int(std::stoll(text));
    }
    // What Python reads as a number in another way is not guessed.
    if (text.find_first_of("0123456789") != text.npos) {
      RaiseUnsupported("the filter int of {}", Repr(value));
    }
  } else if (value.Is(Type::kFloat)) {
    RaiseUnsupported("the filter int of a large number");
  }
  return bound[0] ? *bound[0] : Value::Int(0);
}

Value Folded(const Value& value) {
  return value.Is(Type::kString) ? Text(Lower(value.Text())) : value;
}

Value Sort(const Value& value, Args& args) {
  const auto bound = Bind(args, "sort", {"reverse", "case_sensitive", "attribute"});
  const bool reverse = bound[0] && bound[0]->Truth();
  const bool exact = bound[1] && bound[1]->Truth();
  const bool by = bound[2] && !bound[2]->Is(Type::kNone);
  if (by && bound[2]->Is(Type::kString) && bound[2]->Text().find(',') != std::string::npos) {
    RaiseUnsupported("the filter sort by several attributes");
  }
  Items keyed;
  for (const Value& item : Iterate(value)) {
    const Value key = by ? AttributeOf(item, *bound[2]) : item;
    keyed.emplace_back(exact ? key : Folded(key), item);
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? Compare(b.first, a.first) < 0 : Compare(a.first, b.first) < 0;
  });
  Values out;
  for (auto& entry : keyed) out.push_back(std::move(entry.second));
  return Value::List(std::move(out));
}

Value DictSort(const Value& value, Args& args) {
  const auto bound = Bind(args, "dictsort", {"case_sensitive", "by", "reverse"});
  if (!value.Is(Type::kDict)) Raise("dictsort takes a dictionary");
  const bool exact = bound[0] && bound[0]->Truth();
  const bool reverse = bound[2] && bound[2]->Truth();
  const std::string by = bound[1] ? Str(*bound[1]) : "key";
  if (by != "key" && by != "value") Raise("dictsort sorts by key or by value");
  Items keyed;
  for (const auto& [key, item] : value.Dict()) {
    const Value& subject = by == "key" ? key : item;
    keyed.emplace_back(exact ? subject : Folded(subject), Value::List({key, item}, Type::kTuple));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? Compare(b.first, a.first) < 0 : Compare(a.first, b.first) < 0;
  });
  Values out;
  for (auto& entry : keyed) out.push_back(std::move(entry.second));
  return Value::List(std::move(out));
}

Value Unique(const Value& value, Args& args) {
  const auto bound = Bind(args, "unique", {"case_sensitive", "attribute"});
  const bool exact = bound[0] && bound[0]->Truth();
  const bool by = bound[1] && !bound[1]->Is(Type::kNone);
  Value seen = Value::Dict({});
  Values out;
  for (const Value& item : Iterate(value)) {
    Value key = by ? AttributeOf(item, *bound[1]) : item;
    if (!exact) key = Folded(key);
    if (seen.Find(key)) continue;
    seen.Dict().emplace_back(key, Value::None());
    out.push_back(item);
  }
  return Generator(std::move(out));
}

Value Sum(const Value& value, Args& args) {
  const auto bound = Bind(args, "sum", {"attribute", "start"});
  Value total = bound[1] ? *bound[1] : Value::Int(0);
  if (total.Is(Type::kString)) Raise("sum() can't sum strings");
  const bool by = bound[0] && !bound[0]->Is(Type::kNone);
  for (const Value& item : Iterate(value)) {
    const Value next = by ? AttributeOf(item, *bound[0]) : item;
    if (next.Is(Type::kFloat) || total.Is(Type::kFloat)) {
      RaiseUnsupported("the filter sum of floats");  // Python's carries a compensation
    }
    total = Binary("+", total, next);
  }
  return total;
}

}  // namespace

Function FindFilter(std::string_view name) {
  static const std::map<std::string_view, Function> filters = {
      {"default", Default},
      {"d", Default},
      {"length", LengthOf},
      {"count", LengthOf},
      {"join", Join},
      {"tojson", ToJsonFilter},
      {"trim", Trim},
      {"upper", MapText<Upper>},
      {"lower", MapText<Lower>},
      {"capitalize", MapText<Capitalize>},
      {"replace", ReplaceFilter},
      {"map", MapFilter},
      {"select", Select<true, false>},
      {"reject", Select<false, false>},
      {"selectattr", Select<true, true>},
      {"rejectattr", Select<false, true>},
      {"first", End<false>},
      {"last", End<true>},
      {"list", ListFilter},
      {"items", ItemsFilter},
      {"string", StringFilter},
      {"safe", Safe},
      {"escape", Escape},
      {"e", Escape},
      {"abs", Abs},
      {"reverse", Reverse},
      {"indent", Indent},
      {"min", Extreme<false>},
      {"max", Extreme<true>},
      {"int", IntFilter},
      {"sort", Sort},
      {"dictsort", DictSort},
      {"unique", Unique},
      {"sum", Sum},
  };
  const auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace kvcake::jinja
