// Methods of strings, dictionaries and lists.
#include <algorithm>
#include <map>
#include <optional>

#include "jinja/format.h"
#include "jinja/text.h"
#include "jinja/value.h"

namespace kvcake::jinja {

namespace {

const std::string& TextOf(const Value* value, std::string_view what) {
  if (!value || !value->Is(Type::kString)) Raise("{}() takes a string", what);
  return value->Text();
}

using Method = Value (*)(const Value& self, Args& args);

template <Side side>
Value StripMethod(const Value& self, Args& args) {
  const auto bound = Bind(args, "strip", {"chars"});
  const bool given = bound[0] && !bound[0]->Is(Type::kNone);
  return Value::String(Strip(self.Text(), given ? &TextOf(bound[0], "strip") : nullptr, side));
}

Value Texts(const std::vector<std::string>& texts) {
  Values values;
  for (const auto& text : texts) values.push_back(Value::String(text));
  return Value::List(std::move(values));
}

std::vector<std::string> SplitSpace(const std::string& text, int64_t count) {
  std::vector<std::string> out;
  std::string rest = Strip(text, nullptr, Side::kLeft);
  const auto codes = ToCodes(rest);
  size_t i = 0;
  while (i < codes.size()) {
    if (count-- == 0) {
      AddPart(FromCodes(std::u32string_view(codes).substr(i)), &out);
      break;
    }
    const size_t begin = i;
    while (i < codes.size() && !IsSpaceCode(codes[i])) ++i;
    AddPart(FromCodes(std::u32string_view(codes).substr(begin, i - begin)), &out);
    while (i < codes.size() && IsSpaceCode(codes[i])) ++i;
  }
  return out;
}

std::vector<std::string> RSplitSpace(const std::string& text, int64_t count) {
  std::vector<std::string> out;
  const auto codes = ToCodes(Strip(text, nullptr, Side::kRight));
  size_t i = codes.size();
  while (i > 0) {
    if (count-- == 0) {
      AddPart(FromCodes(std::u32string_view(codes).substr(0, i)), &out);
      break;
    }
    const size_t end = i;
    while (i > 0 && !IsSpaceCode(codes[i - 1])) --i;
    AddPart(FromCodes(std::u32string_view(codes).substr(i, end - i)), &out);
    while (i > 0 && IsSpaceCode(codes[i - 1])) --i;
  }
  return {out.rbegin(), out.rend()};
}

Value Split(const Value& self, Args& args) {
  const auto bound = Bind(args, "split", {"sep", "maxsplit"});
  int64_t count = IntegerOr(bound[1], -1, "split()");
  if (!bound[0] || bound[0]->Is(Type::kNone)) return Texts(SplitSpace(self.Text(), count));
  const std::string& sep = TextOf(bound[0], "split");
  if (sep.empty()) Raise("empty separator");
  std::vector<std::string> out;
  size_t begin = 0;
  for (; count != 0; --count) {
    const size_t at = self.Text().find(sep, begin);
    if (at == std::string::npos) break;
    AddPart(self.Text().substr(begin, at - begin), &out);
    begin = at + sep.size();
  }
  AddPart(self.Text().substr(begin), &out);
  return Texts(out);
}

Value RSplit(const Value& self, Args& args) {
  const auto bound = Bind(args, "rsplit", {"sep", "maxsplit"});
  int64_t count = IntegerOr(bound[1], -1, "split()");
  if (!bound[0] || bound[0]->Is(Type::kNone)) {
    return Texts(RSplitSpace(self.Text(), count));
  }
  const std::string& sep = TextOf(bound[0], "rsplit");
  if (sep.empty()) Raise("empty separator");
  std::vector<std::string> out;
  std::string_view rest = self.Text();
  for (; count != 0; --count) {
    const size_t at = rest.rfind(sep);
    if (at == rest.npos) break;
    out.emplace(out.begin(), rest.substr(at + sep.size()));
    Budget::Spend(out.size());
    rest = rest.substr(0, at);
  }
  out.emplace(out.begin(), rest);
  return Texts(out);
}

Value SplitLines(const Value& self, Args& args) {
  const auto bound = Bind(args, "splitlines", {"keepends"});
  return Texts(Lines(self.Text(), bound[0] && bound[0]->Truth()));
}

// text[start:end] as str.find and the like take it. None where start lies behind the end, in which
// not even the empty string is found.
std::optional<std::pair<std::string, int64_t>> Part(const Value& self, const Value* start,
                                                    const Value* end) {
  const bool whole = (!start || start->Is(Type::kNone)) && (!end || end->Is(Type::kNone));
  if (whole) return std::pair(self.Text(), int64_t{0});
  const int64_t size = Length(self);
  const auto at = [&](const Value* bound, int64_t otherwise) {
    if (!bound || bound->Is(Type::kNone)) return otherwise;
    const int64_t given = IntegerOf(bound, "a bound");
    return given < 0 ? std::max<int64_t>(given < -size ? 0 : given + size, 0) : given;
  };
  const int64_t from = at(start, 0);
  const int64_t to = std::min(at(end, size), size);
  if (from > to) return std::nullopt;
  return std::pair(FromCodes(ToCodes(self.Text()).substr(from, to - from)), from);
}

template <bool at_end>
Value StartsWith(const Value& self, Args& args) {
  const auto bound = Bind(args, "startswith", {"prefix", "start", "end"});
  if (!bound[0]) Raise("startswith() takes an argument");
  const auto part = Part(self, bound[1], bound[2]);
  const Values words = bound[0]->Is(Type::kTuple) ? bound[0]->List() : Values{*bound[0]};
  for (const Value& word : words) {
    const auto& text = TextOf(&word, at_end ? "endswith" : "startswith");
    if (part && (at_end ? part->first.ends_with(text) : part->first.starts_with(text))) {
      return Value::Bool(true);
    }
  }
  return Value::Bool(false);
}

Value ReplaceMethod(const Value& self, Args& args) {
  const auto bound = Bind(args, "replace", {"old", "new", "count"});
  return Value::String(Replace(self.Text(), TextOf(bound[0], "replace"),
                               TextOf(bound[1], "replace"), IntegerOr(bound[2], -1, "replace()")));
}

template <std::string (*map)(std::string_view)>
Value MapMethod(const Value& self, Args& args) {
  Bind(args, "the method", {});
  return Value::String(map(self.Text()));
}

Value Join(const Value& self, Args& args) {
  const auto bound = Bind(args, "join", {"iterable"});
  if (!bound[0]) Raise("join() takes an argument");
  std::string out;
  bool first = true;
  for (const Value& item : Iterate(*bound[0])) {
    if (!std::exchange(first, false)) out += self.Text();
    out += TextOf(&item, "join");
    Budget::CheckSize(out.size());
  }
  return Value::String(std::move(out));
}

template <bool from_end, bool raises>
Value Find(const Value& self, Args& args) {
  const auto bound = Bind(args, "find", {"sub", "start", "end"});
  const std::string& word = TextOf(bound[0], "find");
  const auto part = Part(self, bound[1], bound[2]);
  const size_t at = !part      ? std::string::npos
                    : from_end ? part->first.rfind(word)
                               : part->first.find(word);
  if (at == std::string::npos) {
    if (raises) Raise("substring not found");
    return Value::Int(-1);
  }
  return Value::Int(part->second + static_cast<int64_t>(ToCodes(part->first.substr(0, at)).size()));
}

Value Count(const Value& self, Args& args) {
  const auto bound = Bind(args, "count", {"sub", "start", "end"});
  const std::string& word = TextOf(bound[0], "count");
  const auto part = Part(self, bound[1], bound[2]);
  if (!part) return Value::Int(0);
  const std::string& text = part->first;
  if (word.empty()) return Value::Int(static_cast<int64_t>(ToCodes(text).size()) + 1);
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) ++count;
  return Value::Int(count);
}

template <bool (*is)(std::string_view)>
Value Is(const Value& self, Args& args) {
  Bind(args, "the method", {});
  return Value::Bool(is(self.Text()));
}

// Every character is of one of the classes; `of_none` is what the empty string is.
template <uint16_t classes, bool of_none = false>
bool AllAre(std::string_view text) {
  if (text.empty()) return of_none;
  const auto codes = ToCodes(text);
  return std::all_of(codes.begin(), codes.end(), [](char32_t c) { return Has(c, classes); });
}
bool IsSpace(std::string_view text) {
  const auto codes = ToCodes(text);
  return !codes.empty() && std::all_of(codes.begin(), codes.end(), IsSpaceCode);
}
bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}
bool IsIdentifier(std::string_view text) {
  const auto codes = ToCodes(text);
  return !codes.empty() && (Has(codes[0], kIdentifierStart) || codes[0] == U'_') &&
         std::all_of(codes.begin(), codes.end(), [](char32_t c) { return Has(c, kIdentifier); });
}

template <Side side>
Value Just(const Value& self, Args& args) {
  const auto bound = Bind(args, "the method", {"width", "fillchar"});
  const int64_t width = IntegerOf(bound[0], "a width");
  const auto fill = bound[1] ? ToCodes(TextOf(bound[1], "the method")) : U" ";
  if (fill.size() != 1) Raise("The fill character must be exactly one character long");
  return Value::String(Pad(self.Text(), width, fill[0], side));
}

Value ZFill(const Value& self, Args& args) {
  const auto bound = Bind(args, "zfill", {"width"});
  const int64_t given = IntegerOf(bound[0], "zfill()");
  const std::string& text = self.Text();
  const bool is_signed = text.starts_with('+') || text.starts_with('-');
  const std::string sign = is_signed ? text.substr(0, 1) : "";
  const int64_t width = given - (is_signed && given > 0 ? 1 : 0);
  return Value::String(sign + Pad(text.substr(sign.size()), width, U'0', Side::kLeft));
}

template <bool from_end>
Value Partition(const Value& self, Args& args) {
  const auto bound = Bind(args, "partition", {"sep"});
  const std::string& sep = TextOf(bound[0], "partition");
  if (sep.empty()) Raise("empty separator");
  const std::string& text = self.Text();
  const size_t at = from_end ? text.rfind(sep) : text.find(sep);
  std::string parts[3];
  if (at == std::string::npos) {
    parts[from_end ? 2 : 0] = text;
  } else {
    parts[0] = text.substr(0, at), parts[1] = sep, parts[2] = text.substr(at + sep.size());
  }
  Values values;
  for (std::string& part : parts) values.push_back(Value::String(std::move(part)));
  return Value::List(std::move(values), Type::kTuple);
}

Value ExpandTabs(const Value& self, Args& args) {
  const auto bound = Bind(args, "expandtabs", {"tabsize"});
  const int64_t size = IntegerOr(bound[0], 8, "expandtabs()");
  std::u32string out;
  int64_t column = 0;
  for (const char32_t c : ToCodes(self.Text())) {
    if (c == U'\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      Budget::CheckSize(out.size() + static_cast<uint64_t>(spaces));
      Budget::Spend(static_cast<uint64_t>(spaces) / 64);
      out.append(static_cast<size_t>(spaces), U' ');
      column += spaces;
    } else {
      out += c;
      column = c == U'\n' || c == U'\r' ? 0 : column + 1;
    }
  }
  return Value::String(FromCodes(out));
}

Value FormatMethod(const Value& self, Args& args) {
  return Value::String(FormatBraces(self.Text(), args));
}

Value RemovePrefix(const Value& self, Args& args) {
  const auto bound = Bind(args, "removeprefix", {"prefix"});
  const auto& word = TextOf(bound[0], "removeprefix");
  return Value::String(self.Text().starts_with(word) ? self.Text().substr(word.size())
                                                     : self.Text());
}
Value RemoveSuffix(const Value& self, Args& args) {
  const auto bound = Bind(args, "removesuffix", {"suffix"});
  const auto& word = TextOf(bound[0], "removesuffix");
  return Value::String(self.Text().ends_with(word)
                           ? self.Text().substr(0, self.Text().size() - word.size())
                           : self.Text());
}

template <int part>
Value View(const Value& self, Args& args) {
  Bind(args, "the method", {});
  Values values;
  for (const auto& [key, value] : self.Dict()) {
    values.push_back(part == 0 ? key : part == 1 ? value : Value::List({key, value}, Type::kTuple));
  }
  static constexpr const char* kKinds[] = {"dict_keys", "dict_values", "dict_items"};
  return Value::List(std::move(values), Type::kSequence, kKinds[part]);
}

Value Get(const Value& self, Args& args) {
  if (!args.named.empty()) Raise("get() takes no keyword arguments");
  const auto bound = Bind(args, "get", {"key", "default"});
  if (!bound[0]) Raise("get() takes an argument");
  if (const Value* found = self.Find(*bound[0])) return *found;
  return bound[1] ? *bound[1] : Value::None();
}

Value CopyDict(const Value& self, Args& args) {
  Bind(args, "copy", {});
  return self;
}

Value ListIndex(const Value& self, Args& args) {
  const auto bound = Bind(args, "index", {"value"});
  if (!bound[0]) Raise("index() takes an argument");
  for (size_t i = 0; i < self.List().size(); ++i) {
    if (Equal(self.List()[i], *bound[0])) return Value::Int(static_cast<int64_t>(i));
  }
  Raise("{} is not in list", Repr(*bound[0]));
}
Value ListCopy(const Value& self, Args& args) {
  Bind(args, "copy", {});
  return Value::List(self.List());
}
Value ListCount(const Value& self, Args& args) {
  const auto bound = Bind(args, "count", {"value"});
  if (!bound[0]) Raise("count() takes an argument");
  int64_t count = 0;
  for (const Value& item : self.List()) count += Equal(item, *bound[0]);
  return Value::Int(count);
}

// A method may look at all of its text, and at each place for what it is given.
void SpendOn(const Value& self, const Args& args) {
  if (!self.Is(Type::kString)) return;
  size_t longest = 0;
  const auto count = [&longest](const Value& arg) {
    if (arg.Is(Type::kString)) longest = std::max(longest, arg.Text().size());
  };
  for (const Value& arg : args.values) count(arg);
  for (const auto& [name, arg] : args.named) count(arg);
  Budget::SpendOnSearch(self.Text().size(), longest);
}

using Methods = std::map<std::string_view, Method>;

const Methods& StringMethods() {
  static const Methods methods = {
      {"strip", StripMethod<Side::kBoth>},
      {"lstrip", StripMethod<Side::kLeft>},
      {"rstrip", StripMethod<Side::kRight>},
      {"split", Split},
      {"rsplit", RSplit},
      {"splitlines", SplitLines},
      {"startswith", StartsWith<false>},
      {"endswith", StartsWith<true>},
      {"replace", ReplaceMethod},
      {"title", MapMethod<TitleCase>},
      {"upper", MapMethod<Upper>},
      {"lower", MapMethod<Lower>},
      {"capitalize", MapMethod<Capitalize>},
      {"join", Join},
      {"find", Find<false, false>},
      {"rfind", Find<true, false>},
      {"index", Find<false, true>},
      {"rindex", Find<true, true>},
      {"count", Count},
      {"isdigit", Is<AllAre<kDecimal | kDigit>>},
      {"isdecimal", Is<AllAre<kDecimal>>},
      {"isnumeric", Is<AllAre<kDecimal | kDigit | kNumeric>>},
      {"isalpha", Is<AllAre<kAlpha>>},
      {"isalnum", Is<AllAre<kAlpha | kDecimal | kDigit | kNumeric>>},
      {"isprintable", Is<AllAre<kPrintable, true>>},
      {"isspace", Is<IsSpace>},
      {"isascii", Is<IsAscii>},
      {"isidentifier", Is<IsIdentifier>},
      {"isupper", Is<IsUpper>},
      {"islower", Is<IsLower>},
      {"istitle", Is<IsTitle>},
      {"casefold", MapMethod<CaseFold>},
      {"swapcase", MapMethod<SwapCase>},
      {"center", Just<Side::kBoth>},
      {"ljust", Just<Side::kRight>},
      {"rjust", Just<Side::kLeft>},
      {"zfill", ZFill},
      {"partition", Partition<false>},
      {"rpartition", Partition<true>},
      {"expandtabs", ExpandTabs},
      {"format", FormatMethod},
      {"removeprefix", RemovePrefix},
      {"removesuffix", RemoveSuffix},
  };
  return methods;
}
const Methods& DictMethods() {
  static const Methods methods = {
      {"items", View<2>}, {"keys", View<0>}, {"values", View<1>}, {"get", Get}, {"copy", CopyDict}};
  return methods;
}
const Methods& ListMethods() {
  static const Methods methods = {{"index", ListIndex}, {"count", ListCount}, {"copy", ListCopy}};
  return methods;
}

// Methods that make safe text of safe text.
bool KeepsSafe(std::string_view name) {
  static constexpr std::string_view kNames[] = {"strip", "lstrip", "rstrip",     "upper",
                                                "lower", "title",  "capitalize", "swapcase"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

// What transformers' environment hides, as it changes what it is called of.
bool IsUnsafe(const Value& object, std::string_view name) {
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  static constexpr std::string_view kList[] = {"append", "clear",  "extend",  "insert",
                                               "pop",    "remove", "reverse", "sort"};
  if (object.Is(Type::kDict)) return std::ranges::find(kDict, name) != std::end(kDict);
  return object.Is(Type::kList) && std::ranges::find(kList, name) != std::end(kList);
}

// What Python's types have besides, so that it is not taken for something undefined.
bool IsKnownToPython(const Value& object, std::string_view name) {
  static constexpr std::string_view kString = " encode format_map maketrans translate ";
  static constexpr std::string_view kDict = " fromkeys ";
  static constexpr std::string_view kList =
      " copy count index start stop step mapping isdisjoint send throw close ";
  static constexpr std::string_view kNumber =
      " real imag numerator denominator conjugate bit_length bit_count to_bytes from_bytes "
      "as_integer_ratio is_integer hex fromhex ";
  const std::string_view names = object.Is(Type::kString) ? kString
                                 : object.Is(Type::kDict) ? kDict
                                 : object.IsListLike()    ? kList
                                 : object.IsNumber()      ? kNumber
                                                          : "";
  return names.find(fmt::format(" {} ", name)) != names.npos;
}

}  // namespace

bool FindMethod(const Value& object, const std::string& name, Value* method) {
  static const Methods none;
  const Methods& methods = object.Is(Type::kString)                            ? StringMethods()
                           : object.Is(Type::kDict)                            ? DictMethods()
                           : object.Is(Type::kList) || object.Is(Type::kTuple) ? ListMethods()
                                                                               : none;
  const auto found = methods.find(name);
  if (found == methods.end()) {
    if (IsUnsafe(object, name)) {
      *method = Value::Undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe.",
                                             name, TypeName(object)));
      return true;
    }
    if (IsKnownToPython(object, name)) {
      RaiseUnsupported("the attribute {} of '{}'", name, TypeName(object));
    }
    return false;
  }
  const bool safe = object.Is(Type::kString) && object.safe;
  if (safe && !KeepsSafe(name)) RaiseUnsupported("the method {} of safe text", name);
  const Method call = found->second;
  *method = Value::Callable(name, [object, call, safe](Args& args) {
    if (safe && !args.values.empty()) RaiseUnsupported("arguments of a method of safe text");
    SpendOn(object, args);
    Value made = call(object, args);
    if (safe) made.safe = true;
    return made;
  });
  return true;
}

}  // namespace kvcake::jinja
