#include "server/template_literals.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace kvcake {
namespace {

constexpr std::string_view kSpace = " \t\n\r";

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Takes the first word.
std::string_view TakeWord(std::string_view* text) {
  *text = Trim(*text);
  const size_t size = std::find_if_not(text->begin(), text->end(), IsWord) - text->begin();
  const std::string_view word = text->substr(0, size);
  text->remove_prefix(size);
  return word;
}

// A condition that no plain conversation meets, or that no template is rendered with here.
bool NeverMet(std::string_view condition) {
  for (const char* what : {"tool", "function", "ipython", "code_interpreter", "document", "image",
                           "video", "enable_thinking", "false == true"}) {
    if (Has(condition, what)) return true;
  }
  return false;
}

std::string Unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    out += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
  }
  return out;
}

// Adds the literals of an expression that are parts of its value.
void AddLiterals(std::string_view code, std::vector<std::string>* literals) {
  int calls = 0;
  std::vector<bool> parens;  // that are open: of a call
  for (size_t at = 0; at < code.size(); ++at) {
    const char c = code[at];
    if (c == '(') {
      parens.push_back(at > 0 && IsWord(code[at - 1]));
      calls += parens.back() ? 1 : 0;
    } else if (c == ')' && !parens.empty()) {
      calls -= parens.back() ? 1 : 0;
      parens.pop_back();
    }
    if (c != '"' && c != '\'') continue;
    const size_t begin = at + 1;
    for (++at; at < code.size() && code[at] != c; ++at) {
      if (code[at] == '\\') ++at;
    }
    const std::string_view before = Trim(code.substr(0, begin - 1));
    const std::string_view after = Trim(code.substr(std::min(at + 1, code.size())));
    const bool compared = before.ends_with("==") || before.ends_with("!=") ||
                          before.ends_with(" in") || after.starts_with("==") ||
                          after.starts_with("!=") || after.starts_with("in ") ||
                          after.starts_with("not in ");
    const bool key = before.ends_with("[") && after.starts_with("]");
    if (calls > 0 || compared || key) continue;
    literals->push_back(Unescaped(code.substr(begin, std::min(at, code.size()) - begin)));
  }
}

// Follows {% if %} and the like: whether what comes can be met.
class Blocks {
 public:
  void Statement(std::string_view code, std::vector<std::string>* literals) {
    const std::string_view word = TakeWord(&code);
    if (word == "if") {
      never_.push_back(NeverMet(code));
    } else if (word == "elif" && !never_.empty()) {
      never_.back() = NeverMet(code);
    } else if (word == "else" && !never_.empty()) {
      never_.back() = false;
    } else if (word == "for" || word == "macro") {
      never_.push_back(word == "macro" || NeverMet(code));
    } else if ((word == "endif" || word == "endfor" || word == "endmacro") && !never_.empty()) {
      never_.pop_back();
    } else if (word == "set") {
      Expression(code, literals);
    }
  }
  void Expression(std::string_view code, std::vector<std::string>* literals) const {
    if (std::find(never_.begin(), never_.end(), true) == never_.end()) AddLiterals(code, literals);
  }

 private:
  std::vector<bool> never_;
};

}  // namespace

std::vector<std::string> WrittenLiterals(std::string_view jinja) {
  std::vector<std::string> literals;
  Blocks blocks;
  for (size_t at = 0; (at = jinja.find('{', at)) != std::string_view::npos;) {
    const std::string_view rest = jinja.substr(at);
    const char* end = rest.starts_with("{{")   ? "}}"
                      : rest.starts_with("{%") ? "%}"
                      : rest.starts_with("{#") ? "#}"
                                               : nullptr;
    if (end == nullptr) {
      ++at;
      continue;
    }
    const std::string_view inside = rest.substr(2, rest.find(end, 2) - 2);
    at += std::min(rest.size(), inside.size() + 4);
    std::string_view code = inside;
    if (code.starts_with("-")) code.remove_prefix(1);
    if (code.ends_with("-")) code.remove_suffix(1);
    if (*end == '%') blocks.Statement(code, &literals);
    if (*end == '}') blocks.Expression(code, &literals);
  }
  return literals;
}

}  // namespace kvcake
