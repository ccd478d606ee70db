#include "model/tokenizer_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/json_field.h"
#include "base/json_file.h"
#include "base/utf8.h"
#include "model/byte_level.h"
#include "model/tokenizer_config.h"

namespace kvcake {

namespace {

using nlohmann::json;

constexpr size_t kMaxTokenBytes = 64 << 10;
constexpr size_t kMaxAddedBytes = 1 << 20;  // of all added tokens
constexpr size_t kShownBytes = 80;          // of a token, in an error

// The bytes that occur in UTF-8.
bool InUtf8(int byte) { return byte < 0xc0 || (byte >= 0xc2 && byte <= 0xf4); }

class Reader {
 public:
  Reader(const json& root, const std::string& path, const TokenizerConfig& config,
         const TokenizerOptions& options)
      : root_(root, path), config_(config), options_(options) {}

  Result<TokenizerFile> Read() {
    RETURN_IF_ERROR(root_.CheckObject());
    // "truncation" and "padding" are left alone: they say how a batch was once prepared, and
    // Hugging Face's own loader sets them anew.
    RETURN_IF_ERROR(CheckModel());
    ASSIGN_OR_RETURN(file_.normalizer, Normalizer::Read(root_["normalizer"]));
    ASSIGN_OR_RETURN(file_.pre_tokenizer, PreTokenizer::Read(root_["pre_tokenizer"]));
    ASSIGN_OR_RETURN(file_.decoder, TokenDecoder::Read(root_["decoder"]));
    file_.bpe.byte_level = file_.pre_tokenizer.byte_level();
    if (file_.decoder.byte_level() != file_.bpe.byte_level) {
      return root_["decoder"].Refuse(file_.bpe.byte_level
                                         ? "another decoder than ByteLevel after that pre_tokenizer"
                                         : "ByteLevel without a ByteLevel pre_tokenizer");
    }
    RETURN_IF_ERROR(ReadVocabulary());
    RETURN_IF_ERROR(ReadMerges());
    RETURN_IF_ERROR(ReadFallbacks());
    RETURN_IF_ERROR(ReadAddedTokens());
    RETURN_IF_ERROR(ReadPostProcessor(root_["post_processor"]));
    if (!loses_text_ && !file_.pre_tokenizer.removes()) {
      file_.token_bytes_max = piece_bytes_max_ * file_.normalizer.ShrinkMax();
    }
    return std::move(file_);
  }

 private:
  // What is not supported is refused before a vocabulary is read that may look quite different.
  Status CheckModel() {
    const JsonField model = root_["model"];
    RETURN_IF_ERROR(model.CheckObject());
    // Older files do not name the type.
    const bool untyped = model["type"].null() && model["merges"].value().is_array();
    ASSIGN_OR_RETURN(const std::string type,
                     untyped ? Result<std::string>("BPE") : model["type"].Text());
    if (type != "BPE") {
      return model["type"].Refuse(model["type"].Show() + " (kvcake runs BPE)");
    }
    const json& dropout = model["dropout"].value();
    if (!dropout.is_null() && !dropout.is_number()) return model["dropout"].Bad("is no number");
    if (!dropout.is_null() && dropout != 0) return model.Refuse("dropout");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      ASSIGN_OR_RETURN(const std::string value, model[name].Text(""));
      if (!value.empty()) return model.Refuse(name);
    }
    ASSIGN_OR_RETURN(file_.bpe.whole_words, model["ignore_merges"].Flag(false));
    ASSIGN_OR_RETURN(file_.bpe.fuse_unknown, model["fuse_unk"].Flag(false));
    return {};
  }

  // What merging works on; empty when the text is not spelled in the byte alphabet.
  std::optional<std::string> Unspelled(const std::string& text) const {
    return file_.bpe.byte_level ? TextAsBytes(text) : std::optional(text);
  }

  std::optional<int32_t> FindInVocabulary(const std::string& text) const {
    const auto bytes = Unspelled(text);
    const StringMap<int32_t>& ids = bytes ? file_.bpe.ids : other_ids_;
    const auto it = ids.find(bytes ? *bytes : text);
    return it == ids.end() ? std::nullopt : std::optional(it->second);
  }

  // Gives the id its token.
  Status AddToken(const JsonField& field, const std::string& spelling, int32_t id) {
    if (spelling.size() > kMaxTokenBytes) {
      return field.Bad(
          fmt::format("is a token of {} bytes; the limit is {}", spelling.size(), kMaxTokenBytes));
    }
    if (file_.tokens.size() <= static_cast<size_t>(id)) file_.tokens.resize(id + 1);
    if (file_.tokens[id].exists) {
      return field.Bad(fmt::format("repeats an id: two tokens have id {}", id));
    }
    file_.tokens[id].exists = true;
    return SetText(field, spelling, id);
  }

  Status SetText(const JsonField& field, const std::string& spelling, int32_t id) {
    TokenizerFile::Token& token = file_.tokens[id];
    auto text = file_.decoder.Text(spelling, kMaxTokenBytes);
    if (!text) return field.Bad("decodes to too long a text: " + text.error().message);
    token.text = *std::move(text);
    text_bytes_ += token.text.size();
    if (text_bytes_ > options_.max_file_bytes) return field.Bad("decodes to too long texts");
    const auto byte = file_.decoder.FallbackByte(token.text);
    token.fallback_byte = byte.has_value();
    if (byte) token.text.assign(1, *byte);
    file_.first_texts.erase(id);
    if (auto first = file_.decoder.FirstText(spelling)) file_.first_texts[id] = *std::move(first);
    return {};
  }

  Status ReadVocabulary() {
    const JsonField vocab = root_["model"]["vocab"];
    RETURN_IF_ERROR(vocab.CheckObject());
    if (vocab.value().empty()) return vocab.Bad("holds no token");
    file_.bpe.ids.reserve(vocab.value().size());
    for (const auto& [text, value] : vocab.value().items()) {
      // A field costs as much as the rest, so it is made for errors only.
      if (!value.is_number_unsigned() || value.get<uint64_t>() > Limit()) {
        return vocab.Bad(fmt::format("gives token {} the id {}; it must be a number from 0 to {}",
                                     Clip(text, kShownBytes), vocab[text].Show(), Limit()));
      }
      const auto id = value.get<int32_t>();
      if (text.size() > kMaxTokenBytes || IsTaken(id)) {
        RETURN_IF_ERROR(AddToken(vocab[text], text, id));
      }
      RETURN_IF_ERROR(AddToken(vocab, text, id));
      if (auto bytes = Unspelled(text)) {
        piece_bytes_max_ = std::max(piece_bytes_max_, bytes->size());
        file_.bpe.ids.emplace(std::move(*bytes), id);
      } else {
        other_ids_.emplace(text, id);
      }
    }
    return {};
  }

  uint64_t Limit() const { return static_cast<uint64_t>(options_.max_token_id); }
  bool IsTaken(int32_t id) const {
    return static_cast<size_t>(id) < file_.tokens.size() && file_.tokens[id].exists;
  }

  // "left right" or ["left", "right"]; empty when it is neither.
  static std::pair<std::string, std::string> ReadPair(const json& merge) {
    if (merge.is_array()) {
      if (merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) return {};
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    }
    if (!merge.is_string()) return {};
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) return {};
    return {text.substr(0, space), text.substr(space + 1)};
  }

  Status ReadMerges() {
    const JsonField merges = root_["model"]["merges"];
    ASSIGN_OR_RETURN(const size_t size, merges.ArraySize());
    file_.bpe.merges.reserve(size);
    for (size_t i = 0; i < size; ++i) {
      const auto& [left, right] = ReadPair(merges.value()[i]);
      if (left.empty() || right.empty()) {
        return merges[i].Bad("is no pair of tokens: " + merges[i].Show());
      }
      std::array<int32_t, 3> ids;
      for (size_t part = 0; part < 3; ++part) {
        const std::string text = part == 0 ? left : part == 1 ? right : left + right;
        const auto bytes = Unspelled(text);
        const auto it = bytes ? file_.bpe.ids.find(*bytes) : file_.bpe.ids.end();
        if (it == file_.bpe.ids.end()) {
          return merges[i].Bad(fmt::format("({} {}) needs token {}, which is not in model.vocab",
                                           Clip(left, kShownBytes), Clip(right, kShownBytes),
                                           Clip(text, kShownBytes)));
        }
        ids[part] = it->second;
      }
      file_.bpe.merges.push_back({ids[0], ids[1], ids[2]});
    }
    return {};
  }

  // byte_fallback and unk_token: what becomes of text that no token is made of.
  Status ReadFallbacks() {
    const JsonField model = root_["model"];
    ASSIGN_OR_RETURN(const bool bytes, model["byte_fallback"].Flag(false));
    bool complete = true;  // every byte has a token, so that no text is unknown
    for (int byte = 0; byte < 256; ++byte) {
      const auto id = file_.bpe.byte_level ? FindInVocabulary(ByteAsText(byte))
                      : bytes              ? FindInVocabulary(fmt::format("<0x{:02X}>", byte))
                                           : std::nullopt;
      complete = complete && (id || !InUtf8(byte));
      if (!file_.bpe.byte_level) file_.bpe.fallback[byte] = id.value_or(-1);
    }
    if (file_.bpe.byte_level && bytes && !complete) {
      return model["byte_fallback"].Refuse("in a byte-level model that lacks tokens for bytes");
    }
    loses_text_ = !complete;
    if (model["unk_token"].null()) return {};
    ASSIGN_OR_RETURN(const std::string unknown, model["unk_token"].Text());
    const auto id = FindInVocabulary(unknown);
    if (!id && !complete) {
      return model["unk_token"].Bad(Clip(unknown, kShownBytes) + " is not in model.vocab");
    }
    file_.bpe.unknown = id.value_or(-1);
    loses_text_ = !complete && file_.bpe.fuse_unknown;
    return {};
  }

  Status ReadAddedTokens() {
    const JsonField tokens = root_["added_tokens"];
    ASSIGN_OR_RETURN(const size_t size, tokens.null() ? 0 : tokens.ArraySize());
    std::unordered_map<std::string_view, const TokenizerConfig::Token*> beside;
    for (const auto& token : config_.tokens) beside.emplace(token.listed.token.content, &token);
    for (size_t i = 0; i < size; ++i) {
      const JsonField entry = tokens[i];
      ASSIGN_OR_RETURN(ListedToken listed, ListedToken::Read(entry));
      // Transformers adds those of tokenizer_config.json again.
      if (const auto it = beside.find(listed.token.content); it != beside.end()) {
        const bool special = listed.special || it->second->has_role;
        if (it->second->has_flags) listed = it->second->listed;
        listed.special = listed.special || special;
      }
      const std::string& content = listed.token.content;
      if (content.empty()) return entry["content"].Bad("is empty");
      if (added_.contains(content)) {
        return entry["content"].Bad(Clip(content, kShownBytes) + " is listed twice");
      }
      ASSIGN_OR_RETURN(listed.token.id, entry["id"].Int(0, options_.max_token_id));
      RETURN_IF_ERROR(AddListed(entry, std::move(listed)));
    }
    // Tokens that only the files beside this one name.
    for (const TokenizerConfig::Token& named : config_.tokens) {
      const std::string& content = named.listed.token.content;
      if (added_.contains(content) || (named.of_class && !FindInVocabulary(content))) continue;
      RETURN_IF_ERROR(AddListed(JsonField(json(), named.source), named.listed));
    }
    if (const auto eos = added_.find(config_.eos); eos != added_.end()) file_.eos = eos->second;
    // Hugging Face skips a special token by what it is decoded to.
    for (const auto& [spelling, id] : spellings_) {
      file_.tokens[id].special = special_.contains(spelling);
    }
    return {};
  }

  // Where the token has no id, it gets its own.
  Status AddListed(const JsonField& entry, ListedToken listed) {
    AddedToken& token = listed.token;
    const std::string shown = Clip(token.content, kShownBytes);
    const auto vocabulary = static_cast<int32_t>(root_["model"]["vocab"].value().size());
    const auto known = FindInVocabulary(token.content);
    const int32_t next = last_added_ >= vocabulary ? last_added_ + 1 : vocabulary;
    if (token.id < 0) token.id = known.value_or(next);
    if (token.id > options_.max_token_id) {
      return entry.Bad(fmt::format("gives {} the id {}; the limit is {}", shown, token.id,
                                   options_.max_token_id));
    }
    if (known && *known != token.id) {
      return entry["id"].Bad(
          fmt::format("of {} has id {}, but in model.vocab it has {}", shown, token.id, *known));
    }
    if (!known) {
      RETURN_IF_ERROR(AddToken(entry, token.content, token.id));
      if (token.id != next) {
        return entry["id"].Bad(fmt::format(
            "of {} is {}, but Hugging Face, which counts on from the vocabulary, gives it {}",
            shown, token.id, next));
      }
    }
    added_.emplace(token.content, token.id);
    last_added_ = std::max(last_added_, token.id);
    loses_text_ = loses_text_ || token.strip_left || token.strip_right;
    piece_bytes_max_ = std::max(piece_bytes_max_, token.content.size());
    if (listed.special) special_.insert(token.content);
    if (listed.normalized) {  // what is searched for, and what comes back
      auto content = file_.normalizer.Run(std::move(token.content), kMaxTokenBytes);
      if (!content) return entry.Bad(content.error().message);
      token.content = *std::move(content);
      piece_bytes_max_ = std::max(piece_bytes_max_, token.content.size());
      RETURN_IF_ERROR(SetText(entry, token.content, token.id));
    }
    added_bytes_ += token.content.size();
    if (added_bytes_ > kMaxAddedBytes) {
      return root_["added_tokens"].Bad(
          fmt::format("have more than {} bytes together", kMaxAddedBytes));
    }
    spellings_.emplace_back(token.content, token.id);
    (listed.normalized ? file_.added_normalized : file_.added).Add(std::move(token));
    return {};
  }

  Status ReadPostProcessor(const JsonField& post) {
    if (post.null()) return {};
    ASSIGN_OR_RETURN(const std::string name, post["type"].Text());
    const std::string_view type = name;
    if (type == "ByteLevel") return {};  // moves offsets only
    if (type == "Sequence") {
      const JsonField inner = post["processors"];
      ASSIGN_OR_RETURN(const size_t size, inner.ArraySize());
      for (size_t i = 0; i < size; ++i) RETURN_IF_ERROR(ReadPostProcessor(inner[i]));
      return {};
    }
    if (type != "TemplateProcessing") return post.Refuse(type);
    // Hugging Face, too, runs no more than one.
    if (std::exchange(template_, true)) return post.Refuse("a second TemplateProcessing");
    const JsonField single = post["single"];
    ASSIGN_OR_RETURN(const size_t pieces, single.ArraySize());
    std::vector<int32_t> before, after;
    int sequences = 0;
    for (size_t i = 0; i < pieces; ++i) {
      if (!single[i]["Sequence"].null()) {
        ASSIGN_OR_RETURN(const std::string which, single[i]["Sequence"]["id"].Text());
        if (which != "A") return single[i]["Sequence"].Bad("is not the text, A");
        ++sequences;
        continue;
      }
      ASSIGN_OR_RETURN(const std::string token, single[i]["SpecialToken"]["id"].Text());
      const JsonField ids = post["special_tokens"][token]["ids"];
      ASSIGN_OR_RETURN(const size_t size, ids.ArraySize());
      for (size_t j = 0; j < size; ++j) {
        ASSIGN_OR_RETURN(const int32_t id, ids[j].Int(0, options_.max_token_id));
        if (!IsTaken(id)) return ids[j].Bad(fmt::format("is {}, which no token has", id));
        (sequences == 0 ? before : after).push_back(id);
      }
    }
    if (sequences != 1) return single.Bad("must hold the sequence once");
    file_.prefix = std::move(before);
    file_.suffix = std::move(after);
    return {};
  }

  const JsonField root_;
  const TokenizerConfig& config_;
  const TokenizerOptions& options_;
  StringMap<int32_t> other_ids_;  // as spelled in the vocabulary; tokens that are not in bpe.ids
  uint64_t text_bytes_ = 0;       // of what tokens decode to
  bool template_ = false;         // seen in the post processor
  size_t piece_bytes_max_ = 4;    // of what one token is made of; a character may be unknown
  bool loses_text_ = false;       // any number of bytes may end up in one token, or in none
  StringMap<int32_t> added_;      // added tokens by content
  int32_t last_added_ = -1;       // their largest id
  size_t added_bytes_ = 0;
  std::vector<std::pair<std::string, int32_t>> spellings_;  // of them, as decoded
  std::unordered_set<std::string> special_;                 // of them, by content
  TokenizerFile file_;
};

// Transformers 5 puts in front and behind what tokenizer.json says alone, and so does kvcake.
std::string Disagreement(const TokenizerConfig& config, const TokenizerFile& file) {
  const auto part = [](std::optional<bool> adds, const std::vector<int32_t>& ids,
                       const char* name) -> std::string {
    if (adds.value_or(!ids.empty()) == !ids.empty()) return "";
    return fmt::format("add_{}_token of tokenizer_config.json is {}, and tokenizer.json {}; ", name,
                       *adds, ids.empty() ? "adds none" : "adds one");
  };
  const std::string parts =
      part(config.adds_bos, file.prefix, "bos") + part(config.adds_eos, file.suffix, "eos");
  if (parts.empty()) return "";
  return parts + "prompts are as tokenizer.json has them, as with transformers 5, not 4";
}

}  // namespace

Result<TokenizerFile> ReadTokenizerFile(const std::string& dir, const TokenizerOptions& options) {
  const std::string path = dir + "/tokenizer.json";
  const JsonLimits limits = {.max_bytes = options.max_file_bytes};
  ASSIGN_OR_RETURN(const json root, ReadJsonFile(path, limits));
  ASSIGN_OR_RETURN(const TokenizerConfig config, TokenizerConfig::Read(dir));
  ASSIGN_OR_RETURN(TokenizerFile file, Reader(root, path, config, options).Read());
  file.disagreement = Disagreement(config, file);
  return file;
}

}  // namespace kvcake
