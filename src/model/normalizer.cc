#include "model/normalizer.h"

#include <utility>

#include "base/utf8.h"
#include "model/nfc.h"

namespace kvcake {

Result<Normalizer> Normalizer::Read(const JsonField& field) {
  Normalizer normalizer;
  RETURN_IF_ERROR(normalizer.Add(field));
  return normalizer;
}

Status Normalizer::Add(const JsonField& field) {
  if (field.null()) return {};
  ASSIGN_OR_RETURN(const std::string name, field["type"].Text());
  const std::string_view type = name;
  if (type == "Sequence") {
    const JsonField inner = field["normalizers"];
    ASSIGN_OR_RETURN(const size_t size, inner.ArraySize());
    for (size_t i = 0; i < size; ++i) RETURN_IF_ERROR(Add(inner[i]));
    return {};
  }
  if (type == "NFC") {
    steps_.push_back(Nfc());
    return {};
  }
  if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string text, field["prepend"].Text());
    steps_.push_back(Prepend{std::move(text)});
    return {};
  }
  if (type != "Replace") return field.Refuse(type);
  const JsonField pattern = field["pattern"];
  if (!pattern["Regex"].null()) return pattern.Refuse("Regex");
  ASSIGN_OR_RETURN(std::string from, pattern["String"].Text());
  if (from.empty()) return pattern["String"].Bad("is empty");
  ASSIGN_OR_RETURN(std::string to, field["content"].Text());
  steps_.push_back(Replace{std::move(from), std::move(to)});
  return {};
}

Result<std::string> Normalizer::Run(std::string text, size_t max_bytes) const {
  for (const auto& step : steps_) {
    if (std::holds_alternative<Nfc>(step)) {
      text = kvcake::Nfc(text);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (text.empty()) continue;
      if (prepend->text.size() > max_bytes || text.size() > max_bytes - prepend->text.size()) {
        return Fail(ErrorCode::kResourceExhausted,
                    "\"{}\" before a text of {} bytes makes more than {} of them",
                    Clip(prepend->text, 40), text.size(), max_bytes);
      }
      text.insert(0, prepend->text);
    } else {
      const auto& replace = std::get<Replace>(step);
      ASSIGN_OR_RETURN(text, ReplaceAll(std::move(text), replace.from, replace.to, max_bytes));
    }
  }
  return text;
}

size_t Normalizer::ShrinkMax() const {
  // NFC: nothing that is equivalent to a character takes more than 3.5 times its bytes. The
  // Kelvin sign, three bytes, becomes a K.
  constexpr size_t kNfcShrinkMax = 4;
  constexpr size_t kShrinkMax = 1 << 20;
  size_t most = 1;
  for (const auto& step : steps_) {
    if (std::holds_alternative<Nfc>(step)) {
      most *= kNfcShrinkMax;
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      if (replace->to.empty()) return 0;
      most *= (replace->from.size() + replace->to.size() - 1) / replace->to.size();
    }
    if (most > kShrinkMax) return 0;  // as good as no bound
  }
  return most;
}

Result<std::string> ReplaceAll(std::string text, std::string_view from, std::string_view to,
                               size_t max_bytes) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += from.size()) ++found;
  if (found == 0) return text;
  const size_t kept = text.size() - found * from.size();
  if (kept > max_bytes || to.size() > (max_bytes - kept) / found) {
    return Fail(ErrorCode::kResourceExhausted,
                "replacing \"{}\" in a text of {} bytes makes more than {} of them", Clip(from, 40),
                text.size(), max_bytes);
  }
  std::string out;
  out.reserve(kept + found * to.size());
  size_t done = 0;
  for (size_t at = 0; (at = text.find(from, done)) != std::string::npos;) {
    out.append(text, done, at - done);
    out += to;
    done = at + from.size();
  }
  out.append(text, done);
  return out;
}

}  // namespace kvcake
