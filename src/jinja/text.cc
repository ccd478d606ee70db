#include "jinja/text.h"

#include <algorithm>

#include "jinja/value.h"

namespace kvcake::jinja {
namespace {

uint16_t ClassesOf(char32_t code) {
  const auto ranges = ClassRanges();
  const auto at = std::upper_bound(
      ranges.begin(), ranges.end(), code,
      [](char32_t wanted, const ClassRange& range) { return wanted < range.first; });
  if (at == ranges.begin() || code > std::prev(at)->last) return 0;
  return std::prev(at)->classes;
}

// Whether the table has the character.
bool Mapped(char32_t code, Case to, std::u32string* out) {
  const CaseTable& table = TableOf(to);
  const auto special =
      std::lower_bound(table.special.begin(), table.special.end(), code,
                       [](const SpecialCase& entry, char32_t c) { return entry.code < c; });
  if (special != table.special.end() && special->code == code) {
    for (const uint32_t part : special->to) {
      if (part != 0) *out += static_cast<char32_t>(part);
    }
    return true;
  }
  const auto next = std::upper_bound(
      table.ranges.begin(), table.ranges.end(), code,
      [](char32_t wanted, const CaseRange& range) { return wanted < range.first; });
  if (next == table.ranges.begin()) return false;
  const CaseRange& range = *std::prev(next);
  if (code <= range.last && (code - range.first) % range.step == 0) {
    *out += static_cast<char32_t>(static_cast<int64_t>(code) + range.delta);
    return true;
  }
  return false;
}

void Map(char32_t code, Case to, std::u32string* out) {
  if (Mapped(code, to, out)) return;
  if (to == Case::kTitle) return Map(code, Case::kUpper, out);
  if (to == Case::kFold) return Map(code, Case::kLower, out);
  *out += code;
}

// A sigma at the end of a word has a form of its own.
bool IsFinalSigma(const std::u32string& codes, size_t at) {
  size_t before = at;
  while (before > 0 && Has(codes[before - 1], kCaseIgnorable)) --before;
  if (before == 0 || !Has(codes[before - 1], kCased)) return false;
  size_t after = at + 1;
  while (after < codes.size() && Has(codes[after], kCaseIgnorable)) ++after;
  return after == codes.size() || !Has(codes[after], kCased);
}

void MapLower(const std::u32string& codes, size_t at, std::u32string* out) {
  constexpr char32_t kSigma = 0x3A3;
  if (codes[at] != kSigma) return Map(codes[at], Case::kLower, out);
  *out += IsFinalSigma(codes, at) ? char32_t{0x3C2} : char32_t{0x3C3};
}

template <typename F>
std::string MapEach(std::string_view text, F map) {
  const std::u32string codes = ToCodes(text);
  std::u32string out;
  for (size_t i = 0; i < codes.size(); ++i) map(codes, i, &out);
  return FromCodes(out);
}

// All of a text, whatever stands beside a character.
std::string MapAll(std::string_view text, Case to) {
  return MapEach(text, [to](const std::u32string& codes, size_t i, std::u32string* out) {
    Map(codes[i], to, out);
  });
}

// Whether a character is of `wanted`, and none of `unwanted`.
bool IsCasedAs(std::string_view text, uint16_t wanted, uint16_t unwanted) {
  bool found = false;
  for (const char32_t code : ToCodes(text)) {
    if (Has(code, unwanted)) return false;
    found = found || Has(code, wanted);
  }
  return found;
}

}  // namespace

bool Has(char32_t code, uint16_t classes) { return (ClassesOf(code) & classes) != 0; }

std::string Strip(std::string_view text, const std::string* characters, Side side) {
  const auto codes = ToCodes(text);
  const auto chars = characters ? ToCodes(*characters) : std::u32string();
  const auto goes = [&](char32_t c) {
    Budget::Spend(chars.size() / 64);
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

namespace {

// An empty text stands before every character, and at the end.
std::string ReplaceEmpty(std::string_view text, std::string_view to, int64_t count) {
  const std::u32string codes = ToCodes(text);
  std::string out;
  size_t at = 0;
  for (; count != 0 && at <= codes.size(); --count, ++at) {
    out += to;
    if (at < codes.size()) out += FromCodes(std::u32string_view(codes).substr(at, 1));
    Budget::Spend(1);
    Budget::CheckSize(out.size());
  }
  if (at < codes.size()) out += FromCodes(std::u32string_view(codes).substr(at));
  return out;
}

}  // namespace

std::string Replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t count) {
  if (from.empty()) return ReplaceEmpty(text, to, count);
  Budget::SpendOnSearch(text.size(), from.size());
  std::string out;
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

std::string Pad(std::string_view text, int64_t width, char32_t fill, Side side) {
  const auto size = static_cast<int64_t>(ToCodes(text).size());
  if (width <= size) return std::string(text);
  const int64_t pad = width - size;
  Budget::CheckSize(static_cast<uint64_t>(pad));  // before four bytes of each are counted
  Budget::CheckSize(4 * static_cast<uint64_t>(pad) + text.size());
  // As CPython divides an odd number of spaces.
  const int64_t left = side == Side::kLeft    ? pad
                       : side == Side::kRight ? 0
                                              : pad / 2 + (pad & width & 1);
  return FromCodes(std::u32string(left, fill)) + std::string(text) +
         FromCodes(std::u32string(pad - left, fill));
}

void AddPart(std::string part, std::vector<std::string>* parts) {
  Budget::Spend(1);
  Budget::CheckSize((parts->size() + 1) * sizeof(Value));
  parts->push_back(std::move(part));
}

std::vector<std::string> Lines(std::string_view text, bool ends) {
  std::vector<std::string> lines;
  const auto codes = ToCodes(text);
  size_t begin = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    const char32_t c = codes[i];
    const bool ended =
        (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ended) continue;
    const size_t end = c == '\r' && i + 1 < codes.size() && codes[i + 1] == '\n' ? i + 2 : i + 1;
    AddPart(FromCodes(codes.substr(begin, (ends ? end : i) - begin)), &lines);
    begin = end;
    i = end - 1;
  }
  if (begin < codes.size()) AddPart(FromCodes(codes.substr(begin)), &lines);
  return lines;
}

std::string Upper(std::string_view text) { return MapAll(text, Case::kUpper); }

std::string Lower(std::string_view text) { return MapEach(text, MapLower); }

std::string CaseFold(std::string_view text) { return MapAll(text, Case::kFold); }

std::string SwapCase(std::string_view text) {
  return MapEach(text, [](const std::u32string& codes, size_t i, std::u32string* out) {
    if (Has(codes[i], kUpper)) return MapLower(codes, i, out);
    if (Has(codes[i], kLower)) return Map(codes[i], Case::kUpper, out);
    *out += codes[i];
  });
}

std::string Capitalize(std::string_view text) {
  return MapEach(text, [](const std::u32string& codes, size_t i, std::u32string* out) {
    if (i == 0) return Map(codes[i], Case::kTitle, out);
    MapLower(codes, i, out);
  });
}

std::string TitleCase(std::string_view text) {
  return MapEach(text, [](const std::u32string& codes, size_t i, std::u32string* out) {
    if (i > 0 && Has(codes[i - 1], kCased)) return MapLower(codes, i, out);
    Map(codes[i], Case::kTitle, out);
  });
}

bool IsUpper(std::string_view text) { return IsCasedAs(text, kUpper, kLower | kTitle); }

bool IsLower(std::string_view text) { return IsCasedAs(text, kLower, kUpper | kTitle); }

bool IsTitle(std::string_view text) {
  bool cased = false, in_word = false;
  for (const char32_t code : ToCodes(text)) {
    const bool begins = Has(code, kUpper | kTitle), goes_on = Has(code, kLower);
    if ((begins && in_word) || (goes_on && !in_word)) return false;
    in_word = begins || goes_on;
    cased = cased || in_word;
  }
  return cased;
}

}  // namespace kvcake::jinja
