#include "model/json_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <vector>

namespace kvcake {

namespace {

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

// A parser's callback that remembers a name which one object has twice.
class NameWatch {
 public:
  bool operator()(int, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end) open_.pop_back();
    if (event == Event::key && twice_.empty()) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!open_.back().insert(name).second) twice_ = name;
    }
    return true;
  }
  const std::string& twice() const { return twice_; }

 private:
  std::vector<std::set<std::string>> open_;  // names seen so far, by nesting
  std::string twice_;
};

}  // namespace

Result<nlohmann::json> ParseJson(std::string_view text, const std::string& source,
                                 const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return Fail(ErrorCode::kResourceExhausted, "{}: {} bytes, more than the limit of {}", source,
                text.size(), limits.max_bytes);
  }
  RETURN_IF_ERROR(CheckShape(text, source, limits));
  try {
    if (!limits.unique_names) return nlohmann::json::parse(text);
    NameWatch watch;
    auto json = nlohmann::json::parse(text, std::ref(watch));
    if (watch.twice().empty()) return json;
    return Fail(ErrorCode::kInvalidArgument, "{}: \"{}\" is named twice", source,
                watch.twice().substr(0, 200));
  } catch (const nlohmann::json::exception& e) {  // the library knows where the text went wrong
    return Fail(ErrorCode::kInvalidArgument, "{}: not JSON: {}", source,
                std::string_view(e.what()).substr(0, 200));
  }
}

Result<nlohmann::json> ReadJsonFile(const std::string& path, const JsonLimits& limits) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return Fail(errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo,
                "cannot open {}: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return Fail(ErrorCode::kIo, "{} is not a regular file", path);
  if (static_cast<uint64_t>(info.st_size) > limits.max_bytes) {
    return Fail(ErrorCode::kResourceExhausted, "{}: {} bytes, more than the limit of {}", path,
                info.st_size, limits.max_bytes);
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(info.st_size), '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size()))) {
    return Fail(ErrorCode::kIo, "cannot read {}", path);
  }
  return ParseJson(text, path, limits);
}

}  // namespace kvcake
