#include "server/tool_parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/hash.h"

namespace kvcake {
namespace {

struct Family {
  std::string_view name;
  std::unique_ptr<ToolParser> (*make)(uint64_t salt);
  bool special_tokens;
};

constexpr Family kFamilies[] = {
    {"hermes", MakeHermesParser, true},
    {"llama3_json", MakeLlama3Parser, false},
    {"mistral", MakeMistralParser, true},
};

const Family* Find(std::string_view name) {
  const auto* const family = std::ranges::find(kFamilies, name, &Family::name);
  return family == std::end(kFamilies) ? nullptr : family;
}

uint64_t Hash(uint64_t a, uint64_t b) {
  const std::array<uint64_t, 2> input = {a, b};
  return Xxh3_64(std::as_bytes(std::span(input)));
}

}  // namespace

std::string ToolParser::MakeId(uint64_t hash) const {
  return fmt::format("chatcmpl-tool-{:016x}{:016x}", hash, Hash(hash, 1));
}

void ToolParser::BeginCall(std::string name, AnswerDelta* out) {
  const int index = calls_++;
  out->calls.push_back({.index = index,
                        .id = MakeId(Hash(salt_, static_cast<uint64_t>(index))),
                        .name = std::move(name)});
}

void ToolParser::AddArguments(std::string_view arguments, AnswerDelta* out) const {
  if (arguments.empty()) return;
  if (out->calls.empty()) out->calls.push_back({.index = calls_ - 1});
  out->calls.back().arguments += arguments;
}

void ToolParser::AddContent(std::string_view text, AnswerDelta* out) const {
  if (calls_ == 0) out->content += text;
}

bool MarkerFinder::Next(char c, std::string* passed) {
  held_ += c;
  while (!marker_.starts_with(held_)) {
    *passed += held_.front();
    held_.erase(0, 1);
  }
  if (held_.size() < marker_.size()) return false;
  held_.clear();
  return true;
}

std::string MarkerFinder::TakeHeld() { return std::exchange(held_, {}); }

bool IsToolParser(std::string_view name) { return Find(name) != nullptr; }

bool ReadsSpecialTokens(std::string_view name) {
  const Family* const family = Find(name);
  return family != nullptr && family->special_tokens;
}

std::unique_ptr<ToolParser> MakeToolParser(std::string_view name, uint64_t salt) {
  const Family* const family = Find(name);
  return family == nullptr ? nullptr : family->make(salt);
}

}  // namespace kvcake
