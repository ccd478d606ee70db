#include "base/json_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/json_watch.h"
#include "base/read_file.h"
#include "base/utf8.h"

namespace kvcake {

namespace {

constexpr size_t kMessageBytes = 200;

std::string Quoted(std::string_view name) { return '"' + Clip(name, kMessageBytes) + '"'; }

// Counts before parsing, because the parser allocates as it goes.
Status CheckShape(std::string_view text, const std::string& source, const JsonLimits& limits) {
  uint64_t values = 0;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++values;
      if (++depth > limits.max_depth) {
        return Fail(ErrorCode::kInvalidArgument, "{}: nested deeper than {} levels", source,
                    limits.max_depth);
      }
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',') {
      ++values;
    }
  }
  if (values > limits.max_values) {
    return Fail(ErrorCode::kResourceExhausted, "{}: more than {} values", source,
                limits.max_values);
  }
  return {};
}

// Goes through a text that the parser would take, or up to where it would not. A callback of the
// parser could know as much, but then the parser's time grows with the square of the text.
class NameWatch : public JsonWatch {
 public:
  explicit NameWatch(bool unique) : unique_(unique) {}
  const std::string& twice() const { return twice_; }  // a name that one object has twice
  const std::string& last() const { return last_; }    // before the end or the error

  bool key(string_t& name) override {
    last_ = name;
    if (unique_ && twice_.empty() && !open_.back().insert(name).second) twice_ = name;
    return true;
  }
  bool start_object(size_t) override {
    open_.emplace_back();
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }

 private:
  const bool unique_;
  std::vector<std::unordered_set<std::string>> open_;  // names seen so far, by nesting
  std::string twice_, last_;
};

}  // namespace

Result<nlohmann::json> ParseJson(std::string_view text, const std::string& source,
                                 const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return Fail(ErrorCode::kResourceExhausted, "{}: {} bytes, more than the limit of {}", source,
                text.size(), limits.max_bytes);
  }
  RETURN_IF_ERROR(CheckShape(text, source, limits));
  NameWatch watch(limits.unique_names);
  try {
    if (limits.unique_names) nlohmann::json::sax_parse(text, &watch);
    if (!watch.twice().empty()) {
      return Fail(ErrorCode::kInvalidArgument, "{}: {} is named twice", source,
                  Quoted(watch.twice()));
    }
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& e) {  // the library knows where the text went wrong
    if (!limits.unique_names) nlohmann::json::sax_parse(text, &watch);
    const std::string at =
        watch.last().empty() ? "" : fmt::format(" (at the field {})", Quoted(watch.last()));
    return Fail(ErrorCode::kInvalidArgument, "{}: not JSON: {}{}", source,
                Clip(e.what(), kMessageBytes), at);
  }
}

Result<nlohmann::json> ReadJsonFile(const std::string& path, const JsonLimits& limits) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, limits.max_bytes));
  return ParseJson(text, path, limits);
}

}  // namespace kvcake
