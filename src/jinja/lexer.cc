#include "jinja/lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/utf8.h"
#include "jinja/text.h"
#include "jinja/value.h"

namespace kvcake::jinja {
namespace {

bool IsBlank(std::string_view text) { return Strip(text, nullptr, Side::kLeft).empty(); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNamePart(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
int DigitValue(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

// Lines end in \n, and the last one's end is not part of the template.
std::string NormalLines(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      out += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      out += text[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : source_(NormalLines(text)), rest_(source_) {}

  Result<std::vector<Token>> Run() {
    while (pos_ < rest_.size()) RETURN_IF_ERROR(Piece());
    return std::move(tokens_);
  }

 private:
  char At(size_t i) const { return i < rest_.size() ? rest_[i] : '\0'; }
  bool Has(size_t i, std::string_view word) const { return rest_.substr(i).starts_with(word); }
  size_t SkipSpace(size_t i) const {
    size_t size = 0;
    while (i < rest_.size() && IsSpaceCode(DecodeUtf8(rest_.substr(i), &size))) i += size;
    return i;
  }
  void Add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void MoveTo(size_t end) {
    line_ += static_cast<int>(std::count(rest_.begin() + pos_, rest_.begin() + end, '\n'));
    at_line_start_ = end > 0 && rest_[end - 1] == '\n';
    pos_ = end;
  }

  // Text before a tag at `end` whose sign may be - or +; a variable keeps its line's indentation.
  void AddText(size_t end, char sign, bool is_variable) {
    std::string text(rest_.substr(pos_, end - pos_));
    if (sign == '-') {
      text = Strip(text, nullptr, Side::kRight);
    } else if (sign != '+' && !is_variable) {
      const size_t line = text.rfind('\n') + 1;
      if ((line > 0 || at_line_start_) && IsBlank(std::string_view(text).substr(line))) {
        text.resize(line);
      }
    }
    if (!text.empty()) Add(TokenKind::kText, std::move(text));
    MoveTo(end);
  }

  // The end of a closing tag at `i` ("%}", "+%}" or "-%}", its whitespace eaten), 0 where none is.
  size_t TagEnd(size_t i, std::string_view close, bool trims, bool takes_plus) const {
    if (At(i) == '-' && Has(i + 1, close)) return SkipSpace(i + 1 + close.size());
    if (takes_plus && At(i) == '+' && Has(i + 1, close)) return i + 1 + close.size();
    if (!Has(i, close)) return 0;
    i += close.size();
    return trims && At(i) == '\n' ? i + 1 : i;
  }

  Status Piece() {
    size_t tag = pos_;
    while (tag < rest_.size() && !Has(tag, "{%") && !Has(tag, "{{") && !Has(tag, "{#")) ++tag;
    if (tag == rest_.size()) {
      Add(TokenKind::kText, std::string(rest_.substr(pos_)));
      MoveTo(tag);
      return {};
    }
    const char kind = rest_[tag + 1];
    const char sign = At(tag + 2) == '-' || At(tag + 2) == '+' ? rest_[tag + 2] : '\0';
    AddText(tag, sign, kind == '{');
    const size_t inside = tag + (sign ? 3 : 2);
    if (kind == '#') return Comment(inside);
    if (kind == '%') {
      if (const size_t raw = RawBegin(inside)) return Raw(raw);
    }
    Add(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, "");
    MoveTo(inside);
    return Inside(kind == '%');
  }

  Status Comment(size_t i) {
    for (; i < rest_.size(); ++i) {
      if (const size_t end = TagEnd(i, "#}", true, true)) {
        MoveTo(end);
        return {};
      }
    }
    return Fail(ErrorCode::kInvalidArgument, "line {}: a comment has no end: #}}", line_);
  }

  size_t RawBegin(size_t i) const {
    i = SkipSpace(i);
    return Has(i, "raw") ? TagEnd(SkipSpace(i + 3), "%}", false, false) : 0;
  }

  Status Raw(size_t begin) {
    const int line = line_;
    MoveTo(begin);
    for (size_t i = begin; i < rest_.size(); ++i) {
      if (!Has(i, "{%")) continue;
      const char sign = At(i + 2) == '-' || At(i + 2) == '+' ? rest_[i + 2] : '\0';
      const size_t word = SkipSpace(i + (sign ? 3 : 2));
      if (!Has(word, "endraw")) continue;
      if (const size_t end = TagEnd(SkipSpace(word + 6), "%}", true, true)) {
        AddText(i, sign, false);
        MoveTo(end);
        return {};
      }
    }
    return Fail(ErrorCode::kInvalidArgument, "line {}: raw has no endraw", line);
  }

  Status Inside(bool is_block) {
    const int line = line_;
    std::string open;  // the closing brackets that are awaited; while there are any, no tag ends
    while (true) {
      MoveTo(SkipSpace(pos_));
      if (pos_ == rest_.size()) {
        return Fail(ErrorCode::kInvalidArgument, "line {}: a tag has no end: {}", line,
                    is_block ? "%}" : "}}");
      }
      const size_t end =
          open.empty() ? TagEnd(pos_, is_block ? "%}" : "}}", is_block, is_block) : 0;
      if (end) {
        Add(is_block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "");
        MoveTo(end);
        return {};
      }
      const char c = rest_[pos_];
      if (IsDigit(c)) {
        Number();
      } else if (IsNamePart(c)) {
        Name();
      } else if (c == '\'' || c == '"') {
        RETURN_IF_ERROR(String(c));
      } else {
        RETURN_IF_ERROR(Operator(&open));
      }
    }
  }

  void Name() {
    size_t end = pos_;
    while (IsNamePart(At(end))) ++end;
    Add(TokenKind::kName, std::string(rest_.substr(pos_, end - pos_)));
    MoveTo(end);
  }

  // Digits of a base from `i`, single underscores between them left out; where they end.
  size_t Digits(size_t i, int base, std::string* out) const {
    while (DigitValue(At(i)) < base) {
      *out += rest_[i++];
      if (At(i) == '_' && DigitValue(At(i + 1)) < base) ++i;
    }
    return i;
  }

  void Number() {
    std::string digits;
    const char prefix = static_cast<char>(At(pos_ + 1) | 0x20);
    const int base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
    if (rest_[pos_] == '0' && base != 10 && DigitValue(At(pos_ + 2)) < base) {
      digits = {'0', prefix};
      const size_t end = Digits(pos_ + 2, base, &digits);
      Add(TokenKind::kInteger, digits);
      return MoveTo(end);
    }
    size_t end = Digits(pos_, 10, &digits);
    bool is_float = false;
    if (At(end) == '.' && IsDigit(At(end + 1)) && (pos_ == 0 || rest_[pos_ - 1] != '.')) {
      digits += '.';
      end = Digits(end + 1, 10, &digits);
      is_float = true;
    }
    const size_t exponent = At(end + 1) == '+' || At(end + 1) == '-' ? end + 2 : end + 1;
    if ((At(end) | 0x20) == 'e' && IsDigit(At(exponent))) {
      digits += rest_.substr(end, exponent - end);
      end = Digits(exponent, 10, &digits);
      is_float = true;
    }
    if (!is_float && digits[0] == '0') {  // "007" is 00 and 7, which the parser refuses
      digits.clear();
      end = Digits(pos_, 1, &digits);
    }
    Add(is_float ? TokenKind::kFloat : TokenKind::kInteger, digits);
    MoveTo(end);
  }

  // \xNN, \uNNNN, \UNNNNNNNN after the backslash at `i`; nothing where it is damaged.
  std::optional<size_t> CodeEscape(size_t i, size_t digits, std::string* out) const {
    char32_t code = 0;
    for (size_t k = 0; k < digits; ++k) {
      const int value = DigitValue(At(i + 2 + k));
      if (value > 15) return std::nullopt;
      code = code * 16 + value;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return std::nullopt;
    AppendUtf8(code, out);
    return i + 2 + digits;
  }

  std::optional<size_t> Escape(size_t i, std::string* out) const {
    static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    const char c = At(i + 1);
    if (c == 'x') return CodeEscape(i, 2, out);
    if (c == 'u') return CodeEscape(i, 4, out);
    if (c == 'U') return CodeEscape(i, 8, out);
    if (c == 'N') return std::nullopt;  // a character's name
    if (c == '\n') return i + 2;
    if (c >= '0' && c <= '7') {
      char32_t code = 0;
      size_t end = i + 1;
      while (end < i + 4 && DigitValue(At(end)) < 8) code = code * 8 + DigitValue(rest_[end++]);
      AppendUtf8(code, out);
      return end;
    }
    const size_t known = kFrom.find(c);
    if (known == kFrom.npos) {  // stays as it is, as in Python
      *out += '\\';
      return i + 1;
    }
    *out += kTo[known];
    return i + 2;
  }

  Status String(char quote) {
    std::string value;
    size_t i = pos_ + 1;
    while (i < rest_.size() && rest_[i] != quote) {
      if (rest_[i] != '\\') {
        value += rest_[i++];
        continue;
      }
      const auto next = Escape(i, &value);
      if (!next) {
        return Fail(ErrorCode::kInvalidArgument, "line {}: a string has an escape that is none: {}",
                    line_, Clip(rest_.substr(i), 10));
      }
      i = *next;
    }
    if (i >= rest_.size()) {
      return Fail(ErrorCode::kInvalidArgument, "line {}: a string has no end", line_);
    }
    Add(TokenKind::kString, std::move(value));
    MoveTo(i + 1);
    return {};
  }

  Status Operator(std::string* open) {
    static constexpr std::array<std::string_view, 26> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto* found = std::find_if(kOperators.begin(), kOperators.end(),
                                     [&](std::string_view word) { return Has(pos_, word); });
    if (found == kOperators.end()) {
      const bool ascii = static_cast<unsigned char>(rest_[pos_]) < 0x80;
      return Fail(ascii ? ErrorCode::kInvalidArgument : ErrorCode::kUnsupported,
                  "line {}: {} is not known in an expression", line_,
                  Printable(Clip(rest_.substr(pos_), 4)));
    }
    const char c = found->front();
    if (c == '(' || c == '[' || c == '{') {
      *open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open->empty() || open->back() != c) {
        return Fail(ErrorCode::kInvalidArgument, "line {}: {} closes nothing that is open", line_,
                    c);
      }
      open->pop_back();
    }
    Add(TokenKind::kOperator, std::string(*found));
    MoveTo(pos_ + found->size());
    return {};
  }

  const std::string source_;
  const std::string_view rest_;
  size_t pos_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> Lex(std::string_view text) { return Lexer(text).Run(); }

}  // namespace kvcake::jinja
