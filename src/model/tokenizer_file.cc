#include "model/tokenizer_file.h"

#include <string_view>
#include <utility>

#include "model/byte_level.h"
#include "model/json_file.h"
#include "model/nfc.h"

namespace kvcake {

namespace {

using nlohmann::json;

constexpr size_t kMaxTokenBytes = 64 << 10;
// GPT-2's words, built into Hugging Face's ByteLevel.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const json& Get(const json& object, const char* name) {
  static const json null;
  if (!object.is_object()) return null;
  const auto it = object.find(name);
  return it == object.end() ? null : *it;
}

std::string Text(const json& value) { return value.is_string() ? value.get<std::string>() : ""; }

bool Flag(const json& object, const char* name, bool absent) {
  const json& value = Get(object, name);
  return value.is_boolean() ? value.get<bool>() : absent;
}

class Reader {
 public:
  Reader(std::string path, const TokenizerOptions& options)
      : path_(std::move(path)), options_(options) {}

  Result<TokenizerFile> Read() {
    const JsonLimits limits = {.max_bytes = options_.max_file_bytes};
    ASSIGN_OR_RETURN(const json root, ReadJsonFile(path_, limits));
    if (!root.is_object()) return Bad("it is no JSON object");
    // "truncation" and "padding" are left alone: they say how a batch was once prepared, and
    // Hugging Face's own loader sets them anew.
    const json& model = Get(root, "model");
    RETURN_IF_ERROR(ReadModel(model));
    RETURN_IF_ERROR(ReadNormalizer(Get(root, "normalizer")));
    RETURN_IF_ERROR(ReadAddedTokens(Get(root, "added_tokens")));
    RETURN_IF_ERROR(CheckBytes(model));
    RETURN_IF_ERROR(ReadPreTokenizer(Get(root, "pre_tokenizer")));
    if (!byte_level_) return Refuse("a pre_tokenizer without ByteLevel");
    RETURN_IF_ERROR(ReadPostProcessor(Get(root, "post_processor")));
    RETURN_IF_ERROR(CheckDecoder(Get(root, "decoder")));
    return std::move(file_);
  }

 private:
  template <typename... Args>
  tl::unexpected<Error> Bad(fmt::format_string<Args...> format, Args&&... args) const {
    return Fail(ErrorCode::kInvalidArgument, "{}: {}", path_,
                fmt::format(format, std::forward<Args>(args)...));
  }
  tl::unexpected<Error> Refuse(std::string_view what) const {
    return Fail(ErrorCode::kUnsupported, "{}: {} is not supported", path_, what);
  }
  // A name or token from the file, short enough for a message.
  static std::string Show(const json& value) { return value.dump().substr(0, 80); }

  Status ReadModel(const json& model) {
    if (Text(Get(model, "type")) != "BPE") {
      return Refuse("model.type " + Show(Get(model, "type")) + " (kvcake runs byte-level BPE)");
    }
    const json& dropout = Get(model, "dropout");
    if (!dropout.is_null() && dropout != 0) return Refuse("model.dropout");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const json& value = Get(model, name);
      if (!value.is_null() && value != "") return Refuse(std::string("model.") + name);
    }
    file_.whole_words = Flag(model, "ignore_merges", false);
    RETURN_IF_ERROR(ReadVocabulary(Get(model, "vocab")));
    return ReadMerges(Get(model, "merges"));
  }

  Result<int32_t> ReadId(const json& value, std::string_view token) const {
    if (!value.is_number_unsigned() ||
        value.get<uint64_t>() > static_cast<uint64_t>(options_.max_token_id)) {
      return Bad("token {} has id {}, which is no number in [0, {}]", token.substr(0, 80),
                 Show(value), options_.max_token_id);
    }
    return value.get<int32_t>();
  }

  // Gives the id its token; a token that is no text of the byte alphabet stands for itself.
  Status AddToken(const std::string& text, int32_t id) {
    if (text.size() > kMaxTokenBytes) {
      return Bad("token {}... has {} bytes; the limit is {}", text.substr(0, 40), text.size(),
                 kMaxTokenBytes);
    }
    if (file_.tokens.size() <= static_cast<size_t>(id)) file_.tokens.resize(id + 1);
    TokenizerFile::Token& token = file_.tokens[id];
    if (token.exists) return Bad("two tokens have id {}; one is {}", id, text.substr(0, 80));
    token.exists = true;
    token.bytes = TextAsBytes(text).value_or(text);
    return {};
  }

  Status ReadVocabulary(const json& vocab) {
    if (!vocab.is_object() || vocab.empty()) return Bad("model.vocab is no list of tokens");
    file_.ids.reserve(vocab.size());
    for (const auto& [text, value] : vocab.items()) {
      ASSIGN_OR_RETURN(const int32_t id, ReadId(value, text));
      RETURN_IF_ERROR(AddToken(text, id));
      if (auto bytes = TextAsBytes(text)) {
        file_.ids.emplace(std::move(*bytes), id);
      } else {
        file_.other_ids.emplace(text, id);
      }
    }
    return {};
  }

  Status ReadMerges(const json& merges) {
    if (!merges.is_array()) return Bad("model.merges is no list");
    file_.merges.reserve(merges.size());
    for (const json& merge : merges) {
      std::string left, right;
      if (merge.is_array() && merge.size() == 2) {
        left = Text(merge[0]);
        right = Text(merge[1]);
      } else if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
          left = text.substr(0, space);
          right = text.substr(space + 1);
        }
      }
      if (left.empty() || right.empty()) {
        return Bad("merge {} ({}) is no pair of tokens", file_.merges.size(), Show(merge));
      }
      std::array<int32_t, 3> ids;
      size_t i = 0;
      for (const std::string& part : {left, right, left + right}) {
        const auto bytes = TextAsBytes(part);
        const auto it = bytes ? file_.ids.find(*bytes) : file_.ids.end();
        if (it == file_.ids.end()) {
          return Bad("merge {} ({}) needs token {}, which is not in model.vocab",
                     file_.merges.size(), Show(merge), part.substr(0, 80));
        }
        ids[i++] = it->second;
      }
      file_.merges.push_back({ids[0], ids[1], ids[2]});
    }
    return {};
  }

  // Without a token for a byte Hugging Face drops it, or does what these fields say.
  Status CheckBytes(const json& model) const {
    const json& unknown = Get(model, "unk_token");
    if (unknown.is_null() && !Flag(model, "byte_fallback", false)) return {};
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      const bool in_utf8 = byte < 0xc0 || (byte >= 0xc2 && byte <= 0xf4);
      if (in_utf8 && !file_.ids.contains(std::string_view(&c, 1))) {
        return Refuse(
            fmt::format("model.unk_token or byte_fallback without a token for byte {:#x}", byte));
      }
    }
    return {};
  }

  Status ReadNormalizer(const json& normalizer) {
    if (normalizer.is_null()) return {};
    const std::string type = Text(Get(normalizer, "type"));
    if (type == "NFC") {
      file_.normalize = true;
      return {};
    }
    if (type != "Sequence") return Refuse("normalizer " + Show(Get(normalizer, "type")));
    for (const json& inner : Get(normalizer, "normalizers")) {
      RETURN_IF_ERROR(ReadNormalizer(inner));
    }
    return {};
  }

  Status ReadAddedTokens(const json& tokens) {
    if (tokens.is_null()) return {};
    if (!tokens.is_array()) return Bad("added_tokens is no list");
    for (const json& entry : tokens) {
      const std::string content = Text(Get(entry, "content"));
      if (content.empty()) return Bad("an added token has no content: {}", Show(entry));
      ASSIGN_OR_RETURN(const int32_t id, ReadId(Get(entry, "id"), content));
      if (Flag(entry, "single_word", false)) {
        return Refuse("added token " + content.substr(0, 80) + " with single_word");
      }
      const std::optional<int32_t> known = Find(content);
      if (!known) {
        RETURN_IF_ERROR(AddToken(content, id));
        file_.other_ids.emplace(content, id);
      } else if (*known != id) {
        return Bad("added token {} has id {}, but in model.vocab it has {}", content.substr(0, 80),
                   id, *known);
      }
      const bool special = Flag(entry, "special", false);
      file_.tokens[id].special = special;
      AddedToken token{.id = id,
                       .content = content,
                       .strip_left = Flag(entry, "lstrip", false),
                       .strip_right = Flag(entry, "rstrip", false)};
      if (Flag(entry, "normalized", !special)) {
        if (file_.normalize) {  // what is searched for, and what comes back
          token.content = Nfc(content);
          file_.tokens[id].bytes = TextAsBytes(token.content).value_or(token.content);
        }
        file_.added_normalized.Add(std::move(token));
      } else {
        file_.added.Add(std::move(token));
      }
    }
    return {};
  }

  std::optional<int32_t> Find(const std::string& text) const {
    if (const auto it = file_.other_ids.find(text); it != file_.other_ids.end()) return it->second;
    const auto bytes = TextAsBytes(text);
    if (!bytes) return std::nullopt;
    const auto it = file_.ids.find(*bytes);
    return it == file_.ids.end() ? std::nullopt : std::optional(it->second);
  }

  Status AddSplit(const SplitRegex::Rule& rule) {
    auto split = SplitRegex::Compile(rule);
    if (!split) return Refuse(split.error().message);
    file_.splits.push_back(std::move(*split));
    return {};
  }

  Status ReadPreTokenizer(const json& pre) {
    const std::string type = Text(Get(pre, "type"));
    if (type == "Sequence") {
      for (const json& inner : Get(pre, "pretokenizers")) {
        RETURN_IF_ERROR(ReadPreTokenizer(inner));
      }
      return {};
    }
    if (byte_level_) return Refuse("pre_tokenizer " + Show(pre) + " after ByteLevel");
    if (type == "ByteLevel") {
      byte_level_ = true;
      file_.add_prefix_space = Flag(pre, "add_prefix_space", true);
      file_.prefix_split = file_.splits.size();
      if (!Flag(pre, "use_regex", true)) return {};
      return AddSplit({.pattern = kGpt2Pattern});
    }
    if (type == "Digits") {
      using Behavior = SplitRegex::Behavior;
      const bool each = Flag(pre, "individual_digits", false);
      return AddSplit(
          {.pattern = R"(\p{N})", .behavior = each ? Behavior::kIsolated : Behavior::kContiguous});
    }
    SplitRegex::Rule rule;
    const json& behavior = Get(pre, "behavior");
    if (type == "Punctuation") {
      rule.pattern = R"([!-\/:-@\[-`\{-~\p{P}])";
      if (!behavior.is_null()) {
        RETURN_IF_ERROR(ReadBehavior(behavior, &rule.behavior));
      }
      return AddSplit(rule);
    }
    if (type != "Split") return Refuse("pre_tokenizer " + Show(Get(pre, "type")));
    const json& pattern = Get(pre, "pattern");
    rule.literal = Get(pattern, "Regex").is_null();
    rule.pattern = Text(Get(pattern, rule.literal ? "String" : "Regex"));
    if (rule.pattern.empty()) return Bad("pre_tokenizer Split without a pattern");
    rule.invert = Flag(pre, "invert", false);
    RETURN_IF_ERROR(ReadBehavior(behavior, &rule.behavior));
    return AddSplit(rule);
  }

  Status ReadBehavior(const json& value, SplitRegex::Behavior* behavior) const {
    using Behavior = SplitRegex::Behavior;
    constexpr std::pair<const char*, Behavior> kKnown[] = {
        {"Isolated", Behavior::kIsolated},
        {"Removed", Behavior::kRemoved},
        {"MergedWithPrevious", Behavior::kMergedWithPrevious},
        {"MergedWithNext", Behavior::kMergedWithNext},
        {"Contiguous", Behavior::kContiguous}};
    for (const auto& [name, known] : kKnown) {
      if (value == name) {
        *behavior = known;
        return {};
      }
    }
    return Refuse("pre_tokenizer behavior " + Show(value));
  }

  Status ReadPostProcessor(const json& post) {
    if (post.is_null()) return {};
    const std::string type = Text(Get(post, "type"));
    if (type == "ByteLevel") return {};  // moves offsets only
    if (type == "Sequence") {
      for (const json& inner : Get(post, "processors")) {
        RETURN_IF_ERROR(ReadPostProcessor(inner));
      }
      return {};
    }
    if (type != "TemplateProcessing") return Refuse("post_processor " + Show(Get(post, "type")));
    const json& single = Get(post, "single");
    if (!single.is_array()) return Bad("post_processor: single is no list");
    std::vector<int32_t> before, after;
    int sequences = 0;
    for (const json& piece : single) {
      if (Get(piece, "Sequence").is_object()) {
        ++sequences;
        continue;
      }
      const std::string name = Text(Get(Get(piece, "SpecialToken"), "id"));
      const json& ids = Get(Get(Get(post, "special_tokens"), name.c_str()), "ids");
      if (name.empty() || !ids.is_array()) {
        return Bad("post_processor: no ids for {}", Show(piece));
      }
      for (const json& value : ids) {
        ASSIGN_OR_RETURN(const int32_t id, ReadId(value, name));
        (sequences == 0 ? before : after).push_back(id);
      }
    }
    if (sequences != 1) return Bad("post_processor: single must hold the sequence once");
    file_.prefix.insert(file_.prefix.begin(), before.begin(), before.end());
    file_.suffix.insert(file_.suffix.end(), after.begin(), after.end());
    return {};
  }

  Status CheckDecoder(const json& decoder) const {
    const std::string type = Text(Get(decoder, "type"));
    if (type == "ByteLevel") return {};
    const json& inner = Get(decoder, "decoders");
    if (type == "Sequence" && inner.is_array() && inner.size() == 1) return CheckDecoder(inner[0]);
    return Refuse("decoder " + Show(Get(decoder, "type")));
  }

  const std::string path_;
  const TokenizerOptions& options_;
  bool byte_level_ = false;  // seen in the pre_tokenizer
  TokenizerFile file_;
};

}  // namespace

Result<TokenizerFile> ReadTokenizerFile(const std::string& path, const TokenizerOptions& options) {
  return Reader(path, options).Read();
}

}  // namespace kvcake
