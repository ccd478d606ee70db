#include "app/input.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/json_file.h"

namespace kvcake {
namespace {

constexpr JsonLimits kTokenLimits = {
    .max_bytes = 256ull << 20, .max_values = 16ull << 20, .max_depth = 4};

std::optional<std::vector<int32_t>> TokensFromJson(const nlohmann::json& json) {
  const nlohmann::json& ids = json.is_object() && json.contains("tokens") ? json["tokens"] : json;
  if (!ids.is_array()) return std::nullopt;
  std::vector<int32_t> tokens;
  for (const nlohmann::json& id : ids) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) return std::nullopt;
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

std::optional<std::vector<int32_t>> TokensFromWords(const std::string& text) {
  std::istringstream words(text);
  std::vector<int32_t> tokens;
  for (std::string word; words >> word;) {
    int32_t id = -1;
    const char* end = word.data() + word.size();
    const auto [parsed, error] = std::from_chars(word.data(), end, id);
    if (error != std::errc() || parsed != end || id < 0) return std::nullopt;
    tokens.push_back(id);
  }
  return tokens;
}

// For people: - is stdin.
std::string Named(const std::string& path) { return path == "-" ? "stdin" : path; }

// All that comes until the end of `file`, whose name is `path`.
Result<std::string> ReadAll(std::FILE* file, const std::string& path) {
  std::string text;
  std::array<char, 1 << 16> bytes;
  while (const size_t n = std::fread(bytes.data(), 1, bytes.size(), file)) {
    text.append(bytes.data(), n);
  }
  if (std::ferror(file) == 0) return text;
  return Fail(ErrorCode::kIo, "cannot read {}: {}", path, std::strerror(errno));
}

}  // namespace

Result<std::string> ReadText(const std::string& path) {
  if (path == "-") return ReadAll(stdin, Named(path));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (file) return ReadAll(file.get(), path);
  return Fail(ErrorCode::kIo, "cannot read {}: {}", path, std::strerror(errno));
}

Result<std::vector<int32_t>> ReadTokens(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  auto tokens = TokensFromWords(text);
  if (!tokens) {
    if (const auto json = ParseJson(text, path, kTokenLimits)) tokens = TokensFromJson(*json);
  }
  if (!tokens) {
    return Fail(
        ErrorCode::kInvalidArgument,
        "{} must hold a JSON array of token ids (or {{\"tokens\": [...]}}, or ids separated "
        "by white space), which are whole numbers from 0 to {}",
        Named(path), INT32_MAX);
  }
  return *std::move(tokens);
}

}  // namespace kvcake
