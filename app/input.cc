#include "app/input.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
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

}  // namespace

Result<std::string> ReadText(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) {
    return Fail(ErrorCode::kIo, "cannot read {}: {}", path,
                file ? "it is a directory" : std::strerror(errno));
  }
  text << file.rdbuf();
  return text.str();
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
        "by white space)",
        path);
  }
  return *std::move(tokens);
}

}  // namespace kvcake
