// Methods of strings, dictionaries and lists.
#include <map>

#include "jinja/text.h"
#include "jinja/value.h"

namespace kvcake::jinja {

namespace {

// Case is known for ASCII alone.
std::string Map(std::string_view text, const char* what, int (*map)(int)) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) >= 0x80) RaiseUnsupported("{} of what is not ASCII", what);
    c = static_cast<char>(map(static_cast<unsigned char>(c)));
  }
  return out;
}

const std::string& TextOf(const Value* value, std::string_view what) {
  if (!value || !value->Is(Type::kString)) Raise("{}() takes a string", what);
  return value->Text();
}
int64_t IntOf(const Value* value, int64_t otherwise) {
  if (!value) return otherwise;
  if (!value->IsInteger()) Raise("an integer is expected, not {}", TypeName(*value));
  return value->integer;
}

}  // namespace

std::string Strip(std::string_view text, const std::string* characters, Side side) {
  const auto codes = ToCodes(text);
  const auto chars = characters ? ToCodes(*characters) : std::u32string();
  const auto goes = [&](char32_t c) {
    return characters ? chars.find(c) != chars.npos : IsSpaceCode(c);
  };
  size_t begin = 0;
  size_t end = codes.size();
  if (side != Side::kRight) {
    while (begin < end && goes(codes[begin])) ++begin;
  }
  if (side != Side::kLeft) {
    while (end > begin && goes(codes[end - 1])) --end;
  }
  return FromCodes(std::u32string_view(codes).substr(begin, end - begin));
}
std::string Upper(std::string_view text) { return Map(text, "upper", toupper); }
std::string Lower(std::string_view text) { return Map(text, "lower", tolower); }
std::string Capitalize(std::string_view text) {
  std::string out = Lower(text);
  if (!out.empty()) out[0] = static_cast<char>(toupper(out[0]));
  return out;
}
std::string Replace(std::string_view text, std::string_view from, std::string_view to,
                    long long count) {
  std::string out;
  if (from.empty()) RaiseUnsupported("replacing the empty string");
  while (count != 0) {
    const size_t at = text.find(from);
    if (at == text.npos) break;
    out.append(text.substr(0, at)).append(to);
    Budget::CheckSize(out.size());
    text.remove_prefix(at + from.size());
    --count;
  }
  return out.append(text);
}

namespace {

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
      out.push_back(FromCodes(std::u32string_view(codes).substr(i)));
      break;
    }
    const size_t begin = i;
    while (i < codes.size() && !IsSpaceCode(codes[i])) ++i;
    out.push_back(FromCodes(std::u32string_view(codes).substr(begin, i - begin)));
    while (i < codes.size() && IsSpaceCode(codes[i])) ++i;
  }
  return out;
}

Value Split(const Value& self, Args& args) {
  const auto bound = Bind(args, "split", {"sep", "maxsplit"});
  int64_t count = IntOf(bound[1], -1);
  if (!bound[0] || bound[0]->Is(Type::kNone)) return Texts(SplitSpace(self.Text(), count));
  const std::string& sep = TextOf(bound[0], "split");
  if (sep.empty()) Raise("empty separator");
  std::vector<std::string> out;
  size_t begin = 0;
  for (; count != 0; --count) {
    const size_t at = self.Text().find(sep, begin);
    if (at == std::string::npos) break;
    out.push_back(self.Text().substr(begin, at - begin));
    begin = at + sep.size();
  }
  out.push_back(self.Text().substr(begin));
  return Texts(out);
}

Value RSplit(const Value& self, Args& args) {
  const auto bound = Bind(args, "rsplit", {"sep", "maxsplit"});
  int64_t count = IntOf(bound[1], -1);
  if (!bound[0] || bound[0]->Is(Type::kNone)) {
    if (count >= 0) RaiseUnsupported("rsplit with a count and no separator");
    return Texts(SplitSpace(self.Text(), -1));
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
  const bool keep = bound[0] && bound[0]->Truth();
  std::vector<std::string> out;
  const auto codes = ToCodes(self.Text());
  size_t begin = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    const char32_t c = codes[i];
    if (!((c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029))
      continue;
    const size_t end = c == '\r' && i + 1 < codes.size() && codes[i + 1] == '\n' ? i + 2 : i + 1;
    out.push_back(FromCodes(codes.substr(begin, (keep ? end : i) - begin)));
    begin = end;
    i = end - 1;
  }
  if (begin < codes.size()) out.push_back(FromCodes(codes.substr(begin)));
  return Texts(out);
}

template <bool at_end>
Value StartsWith(const Value& self, Args& args) {
  const auto bound = Bind(args, "startswith", {"prefix"});
  if (!bound[0]) Raise("startswith() takes an argument");
  const Values words = bound[0]->Is(Type::kTuple) ? bound[0]->List() : Values{*bound[0]};
  for (const Value& word : words) {
    const auto& text = TextOf(&word, at_end ? "endswith" : "startswith");
    if (at_end ? self.Text().ends_with(text) : self.Text().starts_with(text)) {
      return Value::Bool(true);
    }
  }
  return Value::Bool(false);
}

Value ReplaceMethod(const Value& self, Args& args) {
  const auto bound = Bind(args, "replace", {"old", "new", "count"});
  return Value::String(Replace(self.Text(), TextOf(bound[0], "replace"),
                               TextOf(bound[1], "replace"), IntOf(bound[2], -1)));
}

Value TitleMethod(const Value& self, Args& args) {
  Bind(args, "title", {});
  std::string out = Lower(self.Text());
  bool inside = false;
  for (char& c : out) {
    if (!inside) c = static_cast<char>(toupper(c));
    inside = isalpha(static_cast<unsigned char>(c)) != 0;
  }
  return Value::String(std::move(out));
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
  const auto bound = Bind(args, "find", {"sub"});
  const std::string& text = self.Text();
  const std::string& word = TextOf(bound[0], "find");
  const size_t at = from_end ? text.rfind(word) : text.find(word);
  if (at == std::string::npos) {
    if (raises) Raise("substring not found");
    return Value::Int(-1);
  }
  return Value::Int(static_cast<int64_t>(ToCodes(text.substr(0, at)).size()));
}

Value Count(const Value& self, Args& args) {
  const auto bound = Bind(args, "count", {"sub"});
  const std::string& word = TextOf(bound[0], "count");
  if (word.empty()) return Value::Int(Length(self) + 1);
  int64_t count = 0;
  for (size_t at = 0; (at = self.Text().find(word, at)) != std::string::npos; at += word.size()) {
    ++count;
  }
  return Value::Int(count);
}

int IsDigitByte(int c) { return isdigit(c); }
int IsAlphaByte(int c) { return isalpha(c); }
int IsAlnumByte(int c) { return isalnum(c); }
int IsSpaceByte(int c) { return IsSpaceCode(static_cast<char32_t>(c)) ? 1 : 0; }

template <int (*is)(int)>
Value AllAre(const Value& self, Args& args) {
  Bind(args, "the method", {});
  for (const char c : self.Text()) {
    if (static_cast<unsigned char>(c) >= 0x80) RaiseUnsupported("a test of what is not ASCII");
    if (!is(static_cast<unsigned char>(c))) return Value::Bool(false);
  }
  return Value::Bool(!self.Text().empty());
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
Value ListCount(const Value& self, Args& args) {
  const auto bound = Bind(args, "count", {"value"});
  if (!bound[0]) Raise("count() takes an argument");
  int64_t count = 0;
  for (const Value& item : self.List()) count += Equal(item, *bound[0]);
  return Value::Int(count);
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
      {"title", TitleMethod},
      {"upper", MapMethod<Upper>},
      {"lower", MapMethod<Lower>},
      {"capitalize", MapMethod<Capitalize>},
      {"join", Join},
      {"find", Find<false, false>},
      {"rfind", Find<true, false>},
      {"index", Find<false, true>},
      {"rindex", Find<true, true>},
      {"count", Count},
      {"isdigit", AllAre<IsDigitByte>},
      {"isalpha", AllAre<IsAlphaByte>},
      {"isalnum", AllAre<IsAlnumByte>},
      {"isspace", AllAre<IsSpaceByte>},
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
  static const Methods methods = {{"index", ListIndex}, {"count", ListCount}};
  return methods;
}

// What Python's types have besides, so that it is not taken for something undefined.
bool IsKnownToPython(const Value& object, std::string_view name) {
  static constexpr std::string_view kString =
      " casefold center encode expandtabs format format_map isascii isdecimal isidentifier islower "
      "isnumeric isprintable istitle isupper ljust maketrans partition rjust rpartition swapcase "
      "translate zfill ";
  static constexpr std::string_view kDict = " clear fromkeys pop popitem setdefault update ";
  static constexpr std::string_view kList =
      " append clear copy count index extend insert pop remove reverse sort start stop step "
      "mapping "
      "isdisjoint send throw close ";
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
    if (IsKnownToPython(object, name)) {
      RaiseUnsupported("the attribute {} of '{}'", name, TypeName(object));
    }
    return false;
  }
  if (object.Is(Type::kString) && object.safe) RaiseUnsupported("the method {} of safe text", name);
  const Method call = found->second;
  *method = Value::Callable(name, [object, call](Args& args) { return call(object, args); });
  return true;
}

}  // namespace kvcake::jinja
