#include "model/nfc.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/utf8.h"
#include "model/nfc_table.h"

namespace kvcake {

namespace {

// Nothing below is changed by normalisation, unless something from here on follows it.
constexpr char32_t kFirstRelevant = 0x300;

// Hangul syllables are composed by arithmetic.
constexpr char32_t kSBase = 0xac00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11a7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

uint32_t CombiningClass(char32_t code) {
  const auto ranges = CombiningRanges();
  const auto it = std::upper_bound(ranges.begin(), ranges.end(), code,
                                   [](char32_t c, const auto& range) { return c < range.first; });
  return it != ranges.begin() && code <= std::prev(it)->last ? std::prev(it)->combining_class : 0;
}

void AppendDecomposed(char32_t code, std::vector<char32_t>* out) {
  if (code >= kSBase && code < kSBase + kSCount) {
    const char32_t s = code - kSBase;
    out->push_back(kLBase + s / (kVCount * kTCount));
    out->push_back(kVBase + s % (kVCount * kTCount) / kTCount);
    if (s % kTCount != 0) out->push_back(kTBase + s % kTCount);
    return;
  }
  const auto all = Decompositions();
  const auto it =
      std::lower_bound(all.begin(), all.end(), code,
                       [](const Decomposition& row, char32_t c) { return row.code < c; });
  if (it == all.end() || it->code != code) {
    out->push_back(code);
    return;
  }
  AppendDecomposed(it->first, out);
  if (it->second != 0) AppendDecomposed(it->second, out);
}

// The character that the two make, or 0.
char32_t Compose(char32_t a, char32_t b) {
  if (a >= kLBase && a < kLBase + kLCount && b >= kVBase && b < kVBase + kVCount) {
    return kSBase + ((a - kLBase) * kVCount + (b - kVBase)) * kTCount;
  }
  if (a >= kSBase && a < kSBase + kSCount && (a - kSBase) % kTCount == 0 && b > kTBase &&
      b < kTBase + kTCount) {
    return a + (b - kTBase);
  }
  static const auto* const pairs = [] {
    auto* map = new std::unordered_map<uint64_t, char32_t>;
    for (const Decomposition& row : Decompositions()) {
      const auto never = NeverComposed();
      if (row.second == 0 || std::binary_search(never.begin(), never.end(), row.code)) continue;
      map->emplace(uint64_t{row.first} << 32 | row.second, row.code);
    }
    return map;
  }();
  const auto it = pairs->find(uint64_t{a} << 32 | b);
  return it == pairs->end() ? 0 : it->second;
}

struct Mark {
  char32_t code;
  uint32_t combining_class;
};

// Composes in place: a mark joins the last starter unless a mark of its class or higher stands
// between them.
void ComposeAll(std::vector<Mark>* text) {
  constexpr size_t kNone = SIZE_MAX;
  size_t starter = kNone;
  size_t out = 0;
  for (size_t i = 0; i < text->size(); ++i) {
    const Mark mark = (*text)[i];
    if (starter != kNone) {
      const bool adjacent = out == starter + 1;
      const bool open = adjacent || (*text)[out - 1].combining_class < mark.combining_class;
      const char32_t composed = open ? Compose((*text)[starter].code, mark.code) : 0;
      if (composed != 0) {
        (*text)[starter].code = composed;
        continue;
      }
    }
    if (mark.combining_class == 0) starter = out;
    (*text)[out++] = mark;
  }
  text->resize(out);
}

}  // namespace

std::string Nfc(std::string_view text) {
  // Everything below U+0300 is a lead byte below 0xcc.
  const auto relevant = [](char c) { return static_cast<unsigned char>(c) >= 0xcc; };
  if (std::none_of(text.begin(), text.end(), relevant)) return std::string(text);
  std::vector<char32_t> codes;
  while (!text.empty()) {
    size_t size = 0;
    const char32_t code = DecodeUtf8(text, &size);
    text.remove_prefix(size);
    AppendDecomposed(code, &codes);
  }
  std::vector<Mark> marks;
  marks.reserve(codes.size());
  for (const char32_t code : codes) {
    marks.push_back({code, code < kFirstRelevant ? 0 : CombiningClass(code)});
  }
  for (size_t i = 0; i < marks.size();) {  // canonical order: marks between starters by class
    size_t end = i;
    while (end < marks.size() && marks[end].combining_class != 0) ++end;
    std::stable_sort(
        marks.begin() + static_cast<int64_t>(i), marks.begin() + static_cast<int64_t>(end),
        [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
    i = std::max(end, i + 1);
  }
  ComposeAll(&marks);
  std::string out;
  for (const Mark& mark : marks) AppendUtf8(mark.code, &out);
  return out;
}

}  // namespace kvcake
