#include "model/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace kvcake {

namespace {

// PCRE2's \s counts U+180E in, which Unicode dropped from the white space.
constexpr std::string_view kSpace = "\\t-\\r\\x{85}\\p{Z}";

// Walks a pattern once and copies what both engines read alike.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> Run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        RETURN_IF_ERROR(Escape());
      } else if (in_class_) {
        RETURN_IF_ERROR(ClassCharacter());
      } else if (c == '[') {
        in_class_ = true;
        Copy(pattern_.substr(at_, 2) == "[^" ? 2 : 1);
        if (Next() == ']') return Refuse("a class that begins with ]");
      } else if (c == '(') {
        RETURN_IF_ERROR(Group());
      } else if (c == ')') {
        if (caseless_.size() > 1) caseless_.pop_back();
        Copy(1);
      } else if (c == '}' &&
                 (pattern_.substr(at_ + 1, 1) == "+" || pattern_.substr(at_ + 1, 1) == "?")) {
        return Refuse("}+ or }? (not the same to PCRE2 and Oniguruma)");
      } else if (c == '{' && pattern_.substr(at_ + 1, 1) == ",") {
        return Refuse("a repeat without a lower bound");
      } else {
        Copy(1);
      }
    }
    if (in_class_) return Refuse("a class without an end");
    return std::move(out_);
  }

 private:
  char Next() const { return at_ < pattern_.size() ? pattern_[at_] : '\0'; }
  void Copy(size_t n) {
    out_ += pattern_.substr(at_, n);
    at_ = std::min(at_ + n, pattern_.size());
  }
  tl::unexpected<Error> Refuse(std::string_view what) const {
    return Fail(ErrorCode::kUnsupported, "split pattern {}: {}", pattern_.substr(0, 200), what);
  }

  Status ClassCharacter() {
    const char c = pattern_[at_];
    if (c == '[') return Refuse("a class within a class");
    if (c == '&' && pattern_.substr(at_, 2) == "&&") return Refuse("&& in a class");
    if (c == ']') in_class_ = false;
    Copy(1);
    return {};
  }

  Status Group() {
    constexpr std::string_view kKnown[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)"};
    if (pattern_.substr(at_, 2) != "(?") {
      if (pattern_.substr(at_, 2) == "(*") return Refuse("(*");
      caseless_.push_back(caseless_.back());
      Copy(1);
      return {};
    }
    for (const std::string_view known : kKnown) {
      if (pattern_.substr(at_, known.size()) == known) {
        if (known == "(?i)") {
          if (at_ != 0) return Refuse("(?i) but at the start");
          caseless_.back() = true;
        } else {
          caseless_.push_back(caseless_.back() || known == "(?i:");
        }
        Copy(known.size());
        return {};
      }
    }
    return Refuse(pattern_.substr(at_, 4));
  }

  Status Escape() {
    if (at_ + 1 == pattern_.size()) return Refuse("a \\ at the end");
    const char c = pattern_[at_ + 1];
    if (c == 's' || c == 'S') {
      if (in_class_ && c == 'S') return Refuse("\\S in a class");
      out_ += in_class_ ? std::string(kSpace) : (c == 's' ? "[" : "[^") + std::string(kSpace) + "]";
      at_ += 2;
      return {};
    }
    if (c == 'p' || c == 'P') return Property();
    if (c == 'x') {
      const size_t end = pattern_.find('}', at_);
      Copy(Follows('{') && end != std::string_view::npos ? end + 1 - at_ : 4);
      return {};
    }
    const bool punctuation = c > ' ' && c < 0x7f && !std::isalnum(static_cast<unsigned char>(c));
    if (!punctuation && std::strchr("dDrntfe", c) == nullptr) {
      return Refuse(pattern_.substr(at_, 2));
    }
    Copy(2);
    return {};
  }

  bool Follows(char c) const { return at_ + 2 < pattern_.size() && pattern_[at_ + 2] == c; }

  // Whether a property has all that differs by case only from what it has. Scripts lack the signs
  // that they share, and a mark (U+0345) is a form of iota.
  static bool IsClosedUnderCase(std::string_view name) {
    return name.size() <= 2 && name != "Lu" && name != "Ll" && name != "Lt" && name[0] != 'M';
  }

  // General categories are the same to both; PCRE2 takes the bare name of a script for the
  // characters that the script shares with others too.
  Status Property() {
    const size_t end = pattern_.find('}', at_);
    if (!Follows('{') || end == std::string_view::npos) return Refuse("\\p without {}");
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    bool negated = pattern_[at_ + 1] == 'P';
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return std::isalpha(c) || c == '_';
    });
    constexpr std::string_view kNotScripts[] = {"Any",   "Alphabetic", "Alnum", "Space", "Word",
                                                "Punct", "Alpha",      "Digit", "Upper", "Lower"};
    if (!plain ||
        std::find(std::begin(kNotScripts), std::end(kNotScripts), name) != std::end(kNotScripts)) {
      return Refuse(pattern_.substr(at_, end + 1 - at_));
    }
    if (in_class_ && caseless_.back() && !IsClosedUnderCase(name)) {
      return Refuse(fmt::format("\\p{{{}}} in a class where case does not count", name));
    }
    out_ += negated ? "\\P{" : "\\p{";
    if (name.size() > 2) out_ += "sc:";
    out_ += name;
    out_ += '}';
    at_ = end + 1;
    return {};
  }

  const std::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::vector<bool> caseless_ = {false};  // of the pattern and of each group that is open
  std::string out_;
};

struct Span {
  size_t begin;
  size_t end;
  bool match;
};

// Merges neighbours as Hugging Face does; leaves out what is to be removed.
void Merge(SplitRegex::Behavior behavior, std::vector<Span>* spans) {
  using Behavior = SplitRegex::Behavior;
  std::vector<Span> out;
  bool previous = false;
  const auto add = [&](const Span& span, bool join, bool backwards) {
    if (join && !out.empty()) {
      (backwards ? out.back().begin : out.back().end) = backwards ? span.begin : span.end;
    } else {
      out.push_back(span);
    }
    previous = span.match;
  };
  switch (behavior) {
    case Behavior::kIsolated:
      return;
    case Behavior::kRemoved:
      std::erase_if(*spans, [](const Span& span) { return span.match; });
      return;
    case Behavior::kContiguous:
      for (const Span& span : *spans) add(span, span.match == previous, false);
      break;
    case Behavior::kMergedWithPrevious:
      for (const Span& span : *spans) add(span, span.match && !previous, false);
      break;
    case Behavior::kMergedWithNext:
      for (size_t i = spans->size(); i-- > 0;) {
        add((*spans)[i], (*spans)[i].match && !previous, true);
      }
      std::reverse(out.begin(), out.end());
      break;
  }
  *spans = std::move(out);
}

// What a match needs beside the pattern; one per thread, because a match writes to it.
struct MatchScratch {
  // 1 match and no groups: only where the match lies is asked for.
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr);

  MatchScratch() {
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_heap_limit(context, 64 << 10);  // KiB, where there is no JIT
  }
  MatchScratch(const MatchScratch&) = delete;
  ~MatchScratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

}  // namespace

struct SplitRegex::Compiled {
  explicit Compiled(Rule rule) : rule(std::move(rule)) {}
  Compiled(const Compiled&) = delete;
  ~Compiled() { pcre2_code_free(code); }

  const Rule rule;
  pcre2_code* code = nullptr;
};

SplitRegex::SplitRegex(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;
SplitRegex& SplitRegex::operator=(SplitRegex&&) noexcept = default;
SplitRegex::~SplitRegex() = default;

Result<std::string> TranslatePattern(std::string_view pattern) { return Translator(pattern).Run(); }

bool IsWordCharacter(char32_t code) {
  static const pcre2_code* const pattern = [] {
    constexpr std::string_view text = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]";
    int error = 0;
    size_t offset = 0;
    pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                         PCRE2_UTF, &error, &offset, nullptr);
    CHECK(compiled != nullptr);
    return compiled;
  }();
  thread_local const MatchScratch scratch;
  std::string text;
  AppendUtf8(code, &text);
  return pcre2_match(pattern, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                     PCRE2_NO_UTF_CHECK, scratch.data, nullptr) > 0;
}

Result<SplitRegex> SplitRegex::Compile(const Rule& rule) {
  std::string pattern = rule.pattern;
  if (!rule.literal) {
    ASSIGN_OR_RETURN(pattern, TranslatePattern(rule.pattern));
  }
  auto compiled = std::make_unique<Compiled>(rule);
  const uint32_t options = rule.literal
                               ? PCRE2_UTF | PCRE2_LITERAL
                               : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  size_t offset = 0;
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 options, &error, &offset, nullptr);
  if (!compiled->code) {
    char message[200];
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    return Fail(ErrorCode::kUnsupported, "split pattern {}: {}", rule.pattern.substr(0, 200),
                static_cast<const char*>(message));
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(compiled->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0 || pattern.empty()) {
    return Fail(ErrorCode::kUnsupported, "split pattern {}: it can match nothing at all",
                rule.pattern.substr(0, 200));
  }
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);  // where it cannot, matching interprets
  return SplitRegex(std::move(compiled));
}

Status SplitRegex::Split(std::string_view text, std::vector<std::string_view>* pieces) const {
  thread_local const MatchScratch scratch;
  const Rule& rule = compiled_->rule;
  std::vector<Span> spans;
  size_t end = 0;
  while (end < text.size()) {
    const int found =
        pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), end,
                    PCRE2_NO_UTF_CHECK, scratch.data, scratch.context);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      return Fail(ErrorCode::kResourceExhausted,
                  "split pattern {}: gave up on a text of {} bytes (PCRE2 error {})",
                  rule.pattern.substr(0, 200), text.size(), found);
    }
    const size_t* match = pcre2_get_ovector_pointer(scratch.data);
    if (match[0] > end) spans.push_back({end, match[0], rule.invert});
    spans.push_back({match[0], match[1], !rule.invert});
    end = match[1];
  }
  if (end < text.size()) spans.push_back({end, text.size(), rule.invert});
  Merge(rule.behavior, &spans);
  for (const Span& span : spans) pieces->push_back(text.substr(span.begin, span.end - span.begin));
  return {};
}

}  // namespace kvcake
