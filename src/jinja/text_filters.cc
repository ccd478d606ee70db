#include <algorithm>

#include "jinja/filters.h"
#include "jinja/format.h"
#include "jinja/text.h"

namespace kvcake::jinja {
namespace {

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
  return Value::String(map(Str(value)), value.safe);
}

// Words begin behind spaces, hyphens and opening brackets.
std::string TitleWords(std::string_view text) {
  std::u32string word;
  std::string out;
  const auto end_word = [&] {
    if (word.empty()) return;
    out += Upper(FromCodes(word.substr(0, 1))) + Lower(FromCodes(word.substr(1)));
    word.clear();
  };
  for (const char32_t c : ToCodes(text)) {
    const bool splits =
        c == U'-' || IsSpaceCode(c) || c == U'(' || c == U'{' || c == U'[' || c == U'<';
    if (splits) {
      end_word();
      out += FromCodes(std::u32string(1, c));
    } else {
      word += c;
    }
  }
  end_word();
  return out;
}

Value Title(const Value& value, Args& args) {
  Bind(args, "title", {});
  return Value::String(TitleWords(Str(value)));  // of safe text it is plain in jinja2, too
}

Value ReplaceFilter(const Value& value, Args& args) {
  const auto bound = Bind(args, "replace", {"old", "new", "count"});
  if (!bound[0] || !bound[1]) Raise("replace takes two arguments");
  const int64_t count = bound[2] && bound[2]->IsInteger() ? bound[2]->integer : -1;
  return Value::String(Replace(Str(value), Str(*bound[0]), Str(*bound[1]), count));
}

Value StringFilter(const Value& value, Args& args) {
  Bind(args, "string", {});
  return value.Is(Type::kString) ? value : Value::String(Str(value));
}
Value Safe(const Value& value, Args& args) {
  Bind(args, "safe", {});
  return Value::String(Str(value), true);
}
Value Escape(const Value& value, Args& args) {
  Bind(args, "escape", {});
  return Value::String(value.safe ? Str(value) : EscapeHtml(Str(value)), true);
}
Value ForceEscape(const Value& value, Args& args) {
  Bind(args, "forceescape", {});
  return Value::String(EscapeHtml(Str(value)), true);
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
  const bool blank = bound[2] && bound[2]->Truth();
  std::string out = bound[1] && bound[1]->Truth() ? pad : "";
  bool first = true;
  // The last line has an end, too, as in jinja2: text that ends with one goes on with an empty one.
  for (const std::string& line : Lines(PlainText(value, "indent") + "\n", false)) {
    if (!first) out += '\n';
    if (!first && (blank || !line.empty())) out += pad;
    out += line;
    first = false;
    Budget::CheckSize(out.size());
  }
  return Value::String(std::move(out));
}

Value Center(const Value& value, Args& args) {
  const auto bound = Bind(args, "center", {"width"});
  return Value::String(
      Pad(PlainText(value, "center"), IntegerOr(bound[0], 80, "center"), U' ', Side::kBoth));
}

Value Format(const Value& value, Args& args) {
  if (!args.values.empty() && !args.named.empty()) {
    Raise("can't handle positional and keyword arguments at the same time");
  }
  const std::string format = PlainText(value, "format");
  if (args.named.empty()) {
    return Value::String(FormatPercent(format, Value::List(args.values, Type::kTuple)));
  }
  Items items;
  for (const auto& [name, item] : args.named) items.emplace_back(Value::String(name), item);
  return Value::String(FormatPercent(format, Value::Dict(std::move(items))));
}

Value Truncate(const Value& value, Args& args) {
  const auto bound = Bind(args, "truncate", {"length", "killwords", "end", "leeway"});
  const int64_t length = IntegerOr(bound[0], 255, "truncate");
  const std::u32string end = bound[2] ? ToCodes(Str(*bound[2])) : U"...";
  const bool has_leeway = bound[3] && !bound[3]->Is(Type::kNone);
  const int64_t leeway = has_leeway ? IntegerOr(bound[3], 5, "truncate") : 5;
  const auto end_size = static_cast<int64_t>(end.size());
  if (length < end_size) Raise("expected length >= {}, got {}", end_size, length);
  if (leeway < 0) Raise("expected leeway >= 0, got {}", leeway);
  if (!value.Is(Type::kString)) {  // what is short enough is not looked at
    if (static_cast<__int128>(Length(value)) <= static_cast<__int128>(length) + leeway)
      return value;
    Raise("truncate takes a string, not {}", TypeName(value));
  }
  const std::u32string codes = ToCodes(PlainText(value, "truncate"));
  if (static_cast<__int128>(codes.size()) <= static_cast<__int128>(length) + leeway) return value;
  std::u32string kept = codes.substr(0, static_cast<size_t>(length - end_size));
  if (!(bound[1] && bound[1]->Truth())) kept = kept.substr(0, kept.rfind(U' '));
  return Value::String(FromCodes(kept + end));
}

Value WordCount(const Value& value, Args& args) {
  Bind(args, "wordcount", {});
  int64_t words = 0;
  bool inside = false;
  for (const char32_t c : ToCodes(Str(value))) {
    const bool word = c == U'_' || Has(c, kAlpha | kDecimal | kDigit | kNumeric);
    if (word && !inside) ++words;
    inside = word;
  }
  return Value::Int(words);
}

std::string Quoted(std::string_view text, bool for_query) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~").find(c) != std::string_view::npos ||
                       (c == '/' && !for_query);
    if (plain) {
      out += c;
    } else if (c == ' ' && for_query) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Value UrlEncode(const Value& value, Args& args) {
  Bind(args, "urlencode", {});
  if (!value.Is(Type::kDict) && !value.IsListLike()) {
    if (value.Is(Type::kUndefined)) RaiseUnsupported("urlencode of what is undefined");
    return Value::String(Quoted(Str(value), false));
  }
  std::string out;
  const auto add = [&](const Value& key, const Value& item) {
    if (!out.empty()) out += '&';
    out += Quoted(Str(key), true) + "=" + Quoted(Str(item), true);
    Budget::CheckSize(out.size());
  };
  if (value.Is(Type::kDict)) {
    for (const auto& [key, item] : value.Dict()) add(key, item);
  } else {
    for (const Value& pair : Iterate(value)) {
      const Values both = Iterate(pair);
      if (both.size() != 2) Raise("urlencode takes pairs");
      add(both[0], both[1]);
    }
  }
  return Value::String(std::move(out));
}

}  // namespace

std::string PlainText(const Value& value, std::string_view filter) {
  if (value.safe) RaiseUnsupported("the filter {} of safe text", filter);
  return Str(value);
}

const Filters& TextFilters() {
  static const Filters filters = {
      {"trim", Trim},
      {"upper", MapText<Upper>},
      {"lower", MapText<Lower>},
      {"capitalize", MapText<Capitalize>},
      {"title", Title},
      {"replace", ReplaceFilter},
      {"string", StringFilter},
      {"safe", Safe},
      {"escape", Escape},
      {"e", Escape},
      {"forceescape", ForceEscape},
      {"indent", Indent},
      {"center", Center},
      {"format", Format},
      {"truncate", Truncate},
      {"wordcount", WordCount},
      {"urlencode", UrlEncode},
  };
  return filters;
}

}  // namespace kvcake::jinja
