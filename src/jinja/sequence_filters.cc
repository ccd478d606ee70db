#include <algorithm>
#include <optional>

#include "jinja/filters.h"
#include "jinja/text.h"

namespace kvcake::jinja {
namespace {

// "a.b.0" of an item, as map(attribute=...) and the like have it.
Value AttributeOf(Value item, const Value& path) {
  if (path.IsInteger()) return GetItem(item, path);
  const std::string text = Str(path);
  std::string_view rest = text;
  while (true) {
    Budget::Spend(1);
    const size_t dot = rest.find('.');
    const std::string name(rest.substr(0, dot));
    const bool digits =
        !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == name.npos;
    // environment.getitem: an item first, an attribute then.
    item = GetItem(item, digits ? Value::Int(std::stoll(name)) : Value::String(name));
    if (dot == rest.npos) return item;
    rest.remove_prefix(dot + 1);
  }
}

// The attributes to sort by: "a,b.c".
Values PathsOf(const Value& attributes) {
  if (!attributes.Is(Type::kString)) return {attributes};
  Values paths;
  std::string_view rest = attributes.Text();
  while (true) {
    Budget::CheckSize((paths.size() + 1) * sizeof(Value));
    const size_t comma = rest.find(',');
    paths.push_back(Value::String(std::string(rest.substr(0, comma))));
    if (comma == rest.npos) return paths;
    rest.remove_prefix(comma + 1);
  }
}

Value Default(const Value& value, Args& args) {
  const auto bound = Bind(args, "default", {"default_value", "boolean"});
  const bool boolean = bound[1] && bound[1]->Truth();
  if (value.Is(Type::kUndefined) || (boolean && !value.Truth())) {
    return bound[0] ? *bound[0] : Value::String("");
  }
  return value;
}

Value LengthOf(const Value& value, Args& args) {
  Bind(args, "length", {});
  return Value::Int(Length(value));
}

Value JoinFilter(const Value& value, Args& args) {
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
  return Value::String(std::move(out));
}

Value ToJsonFilter(const Value& value, Args& args) { return Value::String(ToJson(value, args)); }

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
  Value attribute;
  std::optional<Value> otherwise;
  if (by_attribute) {
    const auto bound = Bind(args, "map", {"attribute", "default"});
    if (!bound[0]) Raise("map requires a filter argument");
    attribute = *bound[0];
    if (bound[1] && !bound[1]->Is(Type::kNone)) otherwise = *bound[1];
  } else {
    filter = FindFilter(Str(args.values[0]));
    if (!filter) RaiseUnsupported("the filter {}", Str(args.values[0]));
  }
  for (const Value& item : Iterate(value)) {
    Budget::Spend(2);
    Value mapped = by_attribute ? AttributeOf(item, attribute) : Apply(filter, item, args, 1);
    if (by_attribute && mapped.Is(Type::kUndefined) && otherwise) mapped = *otherwise;
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
  if (value.IsGenerator()) {
    if (last) Raise("'generator' object is not reversible");
    Values& remaining = RemainingOf(value);
    if (remaining.empty()) return Value::Undefined("No item, sequence was empty.");
    Budget::Spend(remaining.size() / 4);
    const Value first = remaining.front();
    remaining.erase(remaining.begin());
    return first;
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

Value Reverse(const Value& value, Args& args) {
  Bind(args, "reverse", {});
  if (value.Is(Type::kString)) {
    return Slice(value, Value::None(), Value::None(), Value::Int(-1));
  }
  Values values = Iterate(value);
  return Generator(Values(values.rbegin(), values.rend()));
}

Value Folded(const Value& value) {
  return value.Is(Type::kString) ? Value::String(Lower(value.Text())) : value;
}

template <bool is_max>
Value Extreme(const Value& value, Args& args) {
  const auto bound = Bind(args, is_max ? "max" : "min", {"case_sensitive", "attribute"});
  const bool exact = bound[0] && bound[0]->Truth();
  const bool by = bound[1] && !bound[1]->Is(Type::kNone);
  const Values values = Iterate(value);
  if (values.empty()) return Value::Undefined("No aggregated item, sequence was empty.");
  const auto key_of = [&](const Value& item) {
    const Value key = by ? AttributeOf(item, *bound[1]) : item;
    return exact ? key : Folded(key);
  };
  size_t best = 0;
  Value best_key = key_of(values[0]);
  for (size_t i = 1; i < values.size(); ++i) {
    Value key = key_of(values[i]);
    if (is_max ? Compare(key, best_key) <= 0 : Compare(key, best_key) >= 0) continue;
    best = i;
    best_key = std::move(key);
  }
  return values[best];
}

Value Sort(const Value& value, Args& args) {
  const auto bound = Bind(args, "sort", {"reverse", "case_sensitive", "attribute"});
  const bool reverse = bound[0] && bound[0]->Truth();
  const bool exact = bound[1] && bound[1]->Truth();
  const bool by = bound[2] && !bound[2]->Is(Type::kNone);
  std::vector<Value> paths;
  if (by) paths = PathsOf(*bound[2]);
  Items keyed;
  for (const Value& item : Iterate(value)) {
    Values keys;
    for (const Value& path : paths) {
      const Value key = AttributeOf(item, path);
      keys.push_back(exact ? key : Folded(key));
    }
    if (!by) keys.push_back(exact ? item : Folded(item));
    keyed.emplace_back(by ? Value::List(std::move(keys)) : keys[0], item);
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

Value Batch(const Value& value, Args& args) {
  const auto bound = Bind(args, "batch", {"linecount", "fill_with"});
  const int64_t count = IntegerOf(bound[0], "batch");
  Values out, line;
  for (const Value& item : Iterate(value)) {
    if (static_cast<int64_t>(line.size()) == count) {
      out.push_back(Value::List(std::exchange(line, {})));
    }
    line.push_back(item);
  }
  if (!line.empty()) {
    const bool fills = bound[1] && !bound[1]->Is(Type::kNone);
    while (fills && static_cast<int64_t>(line.size()) < count) {
      line.push_back(*bound[1]);
      Budget::Spend(1);
    }
    out.push_back(Value::List(std::move(line)));
  }
  return Generator(std::move(out));
}

Value SliceFilter(const Value& value, Args& args) {
  const auto bound = Bind(args, "slice", {"slices", "fill_with"});
  const int64_t count = IntegerOf(bound[0], "slice");
  const Values values = Iterate(value);
  if (count == 0) Raise("division by zero");
  Values out;
  const auto size = static_cast<int64_t>(values.size());
  const int64_t each = count > 0 ? size / count : 0, longer = count > 0 ? size % count : 0;
  int64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    Budget::Spend(1);
    const int64_t end = at + each + (i < longer ? 1 : 0);
    Values part(values.begin() + at, values.begin() + end);
    at = end;
    if (bound[1] && !bound[1]->Is(Type::kNone) && i >= longer) part.push_back(*bound[1]);
    out.push_back(Value::List(std::move(part)));
  }
  return Generator(std::move(out));
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

Value Generator(Values values) {
  return Value::List(std::move(values), Type::kSequence, "generator");
}

const Filters& SequenceFilters() {
  static const Filters filters = {
      {"default", Default},
      {"d", Default},
      {"length", LengthOf},
      {"count", LengthOf},
      {"join", JoinFilter},
      {"tojson", ToJsonFilter},
      {"map", MapFilter},
      {"select", Select<true, false>},
      {"reject", Select<false, false>},
      {"selectattr", Select<true, true>},
      {"rejectattr", Select<false, true>},
      {"first", End<false>},
      {"last", End<true>},
      {"list", ListFilter},
      {"items", ItemsFilter},
      {"reverse", Reverse},
      {"min", Extreme<false>},
      {"max", Extreme<true>},
      {"sort", Sort},
      {"dictsort", DictSort},
      {"unique", Unique},
      {"sum", Sum},
      {"batch", Batch},
      {"slice", SliceFilter},
  };
  return filters;
}

}  // namespace kvcake::jinja
