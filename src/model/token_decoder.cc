#include "model/token_decoder.h"

#include <cctype>
#include <utility>

#include "base/utf8.h"
#include "model/byte_level.h"
#include "model/normalizer.h"
#include "model/pre_tokenizer.h"

namespace kvcake {

namespace {

constexpr int32_t kMaxStrip = 1 << 16;

}  // namespace

Result<TokenDecoder> TokenDecoder::Read(const JsonField& field) {
  if (field.null()) return field.Refuse("null");
  TokenDecoder decoder;
  RETURN_IF_ERROR(decoder.Add(field));
  return decoder;
}

Status TokenDecoder::Add(const JsonField& field) {
  ASSIGN_OR_RETURN(const std::string name, field["type"].Text());
  const std::string_view type = name;
  if (type == "Sequence") {
    const JsonField inner = field["decoders"];
    ASSIGN_OR_RETURN(const size_t size, inner.ArraySize());
    for (size_t i = 0; i < size; ++i) RETURN_IF_ERROR(Add(inner[i]));
    return {};
  }
  const bool first = stage_ == Stage::kTokens && steps_.empty();
  if (type == "Replace") return AddReplace(field);
  if (type == "Strip") return AddStrip(field);
  if (type == "Fuse") {
    if (stage_ <= Stage::kWhole) stage_ = Stage::kWhole;
    return {};
  }
  if (type == "ByteFallback" && stage_ == Stage::kTokens) {
    byte_fallback_ = true;
    stage_ = Stage::kRuns;
    return {};
  }
  if (type == "ByteLevel" && first) {
    byte_level_ = true;
    stage_ = Stage::kDone;
    return {};
  }
  if (type == "Metaspace" && first) {
    ASSIGN_OR_RETURN(MetaspaceFields metaspace, ReadMetaspace(field));
    if (metaspace.prepend_scheme == "never") {
      steps_.push_back(Replace{std::move(metaspace.replacement), " "});
    } else {
      metaspace_ = std::move(metaspace.replacement);
    }
    stage_ = Stage::kRuns;
    return {};
  }
  const bool known = type == "ByteFallback" || type == "ByteLevel" || type == "Metaspace";
  return field.Refuse(known ? name + " at this place" : name);
}

Status TokenDecoder::AddReplace(const JsonField& field) {
  const JsonField pattern = field["pattern"];
  if (!pattern["Regex"].null()) return pattern.Refuse("Regex");
  ASSIGN_OR_RETURN(std::string from, pattern["String"].Text());
  if (from.empty()) return pattern["String"].Bad("is empty");
  ASSIGN_OR_RETURN(std::string to, field["content"].Text());
  if (stage_ != Stage::kTokens) return field.Refuse("Replace at this place");
  steps_.push_back(Replace{std::move(from), std::move(to)});
  return {};
}

Status TokenDecoder::AddStrip(const JsonField& field) {
  Strip strip;
  ASSIGN_OR_RETURN(strip.character, field["content"].Text());
  size_t size = 0;
  if (strip.character.empty() ||
      (DecodeUtf8(strip.character, &size), size != strip.character.size())) {
    return field["content"].Bad("must be one character");
  }
  ASSIGN_OR_RETURN(strip.start, field["start"].Int(0, kMaxStrip));
  ASSIGN_OR_RETURN(strip.stop, field["stop"].Int(0, kMaxStrip));
  if (stage_ == Stage::kTokens) {
    steps_.push_back(std::move(strip));
    return {};
  }
  if (stage_ != Stage::kWhole) return field.Refuse("Strip at this place");
  // The end of a text that is being streamed is not known.
  if (strip.stop != 0) return field["stop"].Refuse("Strip of the end of the text");
  stripped_ = std::move(strip.character);
  strip_start_ = strip.start;
  stage_ = Stage::kDone;
  return {};
}

std::string TokenDecoder::Apply(const Strip& strip, std::string text) {
  const size_t size = strip.character.size();
  for (size_t i = 0; i < strip.start && text.starts_with(strip.character); ++i) text.erase(0, size);
  for (size_t i = 0; i < strip.stop && text.ends_with(strip.character); ++i) {
    text.resize(text.size() - size);
  }
  return text;
}

Result<std::string> TokenDecoder::Text(const std::string& spelling, size_t max_bytes) const {
  if (byte_level_) return TextAsBytes(spelling).value_or(spelling);
  if (!metaspace_.empty()) return ReplaceAll(spelling, metaspace_, " ", max_bytes);
  std::string text = spelling;
  for (const auto& step : steps_) {
    if (const auto* strip = std::get_if<Strip>(&step)) {
      text = Apply(*strip, std::move(text));
    } else {
      const auto& replace = std::get<Replace>(step);
      ASSIGN_OR_RETURN(text, ReplaceAll(std::move(text), replace.from, replace.to, max_bytes));
    }
  }
  return text;
}

std::optional<std::string> TokenDecoder::FirstText(const std::string& spelling) const {
  if (metaspace_.empty() || spelling.find(metaspace_) == std::string::npos) return std::nullopt;
  return ReplaceAll(spelling, metaspace_, "", spelling.size()).value();
}

std::optional<char> TokenDecoder::FallbackByte(std::string_view text) const {
  if (!byte_fallback_ || text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') {
    return std::nullopt;
  }
  int byte = 0;
  for (const char c : text.substr(3, 2)) {
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return std::nullopt;
    byte = byte * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return static_cast<char>(byte);
}

}  // namespace kvcake
