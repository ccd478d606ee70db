#include "model/tokenizer_config.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/json_file.h"

namespace kvcake {

namespace {

using nlohmann::json;

constexpr const char* kIds = "added_tokens_decoder";
constexpr const char* kExtra = "extra_special_tokens";
constexpr const char* kExtraOnce = "additional_special_tokens";  // what it was called
constexpr const char* kSplit = "split_special_tokens";
constexpr const char* kOwn = "model_specific_special_tokens";
constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};

// What transformers has for a class where the files say nothing.
struct ClassNames {
  std::string_view tokenizer_class;  // without "Fast" at its end
  std::vector<std::pair<const char*, const char*>> names;
};
const ClassNames kClassNames[] = {
    {"LlamaTokenizer", {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}},
    {"CodeLlamaTokenizer", {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}},
    {"Qwen2Tokenizer",
     {{"eos_token", "<|endoftext|>"},
      {"unk_token", "<|endoftext|>"},
      {"pad_token", "<|endoftext|>"}}},
    {"GPT2Tokenizer",
     {{"bos_token", "<|endoftext|>"},
      {"eos_token", "<|endoftext|>"},
      {"unk_token", "<|endoftext|>"}}},
    {"GPTNeoXTokenizer",
     {{"bos_token", "<|endoftext|>"},
      {"eos_token", "<|endoftext|>"},
      {"unk_token", "<|endoftext|>"},
      {"pad_token", "<|padding|>"}}},
    {"GemmaTokenizer",
     {{"bos_token", "<bos>"},
      {"eos_token", "<eos>"},
      {"unk_token", "<unk>"},
      {"pad_token", "<pad>"},
      {"mask_token", "<mask>"}}},
};

bool IsOfClass(std::string_view name, const ClassNames& of_class) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  return name == of_class.tokenizer_class;
}

// An object; an empty one where there is no such file.
Result<json> ReadObjectIfThere(const std::string& path) {
  Result<json> object = ReadJsonFile(path);
  if (!object && object.error().code == ErrorCode::kNotFound) return json::object();
  if (object) RETURN_IF_ERROR(JsonField(*object, path).CheckObject());
  return object;
}

bool IsToken(const JsonField& field) {
  return field.value().is_string() || field.value().is_object();
}

class ConfigReader {
 public:
  explicit ConfigReader(const std::string& dir) : dir_(dir) {}

  Result<TokenizerConfig> Read() {
    ASSIGN_OR_RETURN(const json config, ReadObjectIfThere(dir_ + "/tokenizer_config.json"));
    const JsonField fields(config, dir_ + "/tokenizer_config.json");
    json map = json::object(), added = json::object();
    const JsonField map_fields(map, dir_ + "/special_tokens_map.json");
    if (fields[kIds].absent()) {
      ASSIGN_OR_RETURN(map, ReadObjectIfThere(dir_ + "/special_tokens_map.json"));
      ASSIGN_OR_RETURN(added, ReadObjectIfThere(dir_ + "/added_tokens.json"));
    }
    ASSIGN_OR_RETURN(const bool split, fields[kSplit].Flag(false));
    if (split) return fields[kSplit].Refuse("true");
    RETURN_IF_ERROR(ReadNames(fields));
    RETURN_IF_ERROR(ReadNames(map_fields));
    const JsonField& extra = fields[kExtra];
    RETURN_IF_ERROR(ReadExtra(extra));
    // A list goes before what it was called; names are beside it.
    if (!extra.value().is_array() || extra.value().empty()) {
      const JsonField& once = fields[kExtraOnce];
      RETURN_IF_ERROR(ReadExtra(once.null() ? map_fields[kExtraOnce] : once));
    }
    RETURN_IF_ERROR(ReadExtra(map_fields[kExtra]));
    if (!fields[kIds].null()) RETURN_IF_ERROR(ReadIds(fields[kIds]));
    RETURN_IF_ERROR(ReadAdded(JsonField(added, dir_ + "/added_tokens.json")));
    ReadAdds(fields);
    AddClassNames(fields);
    ListNames();
    Order();
    return std::move(config_);
  }

 private:
  // A text, which is special, or an object.
  static Result<TokenizerConfig::Token> ReadToken(const JsonField& field) {
    TokenizerConfig::Token token;
    if (field.value().is_string()) {
      token.listed.token.content = field.value().get<std::string>();
      token.listed.special = true;
      token.listed.normalized = false;
    } else {
      ASSIGN_OR_RETURN(token.listed, ListedToken::Read(field));
    }
    token.source = field.Place();
    return token;
  }

  // By their roles, those of the model's own included; what an older file says counts.
  Status ReadNames(const JsonField& fields) {
    for (const auto& [name, value] : fields.value().items()) {
      const bool known = std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
      if (!known && !name.ends_with("_token")) continue;
      const JsonField field = fields[name];
      if (!IsToken(field)) {
        if (known && !field.null()) return field.Not("a token");
        continue;
      }
      ASSIGN_OR_RETURN(named_[name], ReadToken(field));
    }
    return ReadOwn(fields[kOwn]);
  }

  Status ReadOwn(const JsonField& fields) {
    if (fields.null()) return {};
    RETURN_IF_ERROR(fields.CheckObject());
    for (const auto& [name, value] : fields.value().items()) {
      ASSIGN_OR_RETURN(named_[name], ReadToken(fields[name]));
    }
    return {};
  }

  void ReadAdds(const JsonField& fields) {
    const json& name = fields["tokenizer_class"].value();
    if (name != "LlamaTokenizer" && name != "LlamaTokenizerFast") return;
    const auto adds = [&](const char* field, bool otherwise) {
      const json& value = fields[field].value();
      return value.is_boolean() ? value.get<bool>() : otherwise;
    };
    config_.adds_bos = adds("add_bos_token", true);
    config_.adds_eos = adds("add_eos_token", false);
  }

  // A list, or by names.
  Status ReadExtra(const JsonField& extra) {
    if (extra.null()) return {};
    if (extra.value().is_object()) return ReadOwn(extra);
    ASSIGN_OR_RETURN(const size_t size, extra.ArraySize());
    for (size_t i = 0; i < size; ++i) {
      ASSIGN_OR_RETURN(TokenizerConfig::Token token, ReadToken(extra[i]));
      extra_.push_back(std::move(token));
    }
    return {};
  }

  Status ReadIds(const JsonField& tokens) {
    RETURN_IF_ERROR(tokens.CheckObject());
    for (const auto& [name, value] : tokens.value().items()) {
      ASSIGN_OR_RETURN(TokenizerConfig::Token token, ReadToken(tokens[name]));
      int32_t& id = token.listed.token.id;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
      if (error != std::errc() || end != name.data() + name.size() || id < 0) {
        return tokens[name].Bad("is not named by an id");
      }
      token.has_flags = true;
      by_id_.push_back(std::move(token));
    }
    return {};
  }

  // {"<x>": 32000}; special are those that have a name too.
  Status ReadAdded(const JsonField& tokens) {
    std::set<std::string_view> special;
    for (const auto& [name, token] : named_) special.insert(token.listed.token.content);
    for (const TokenizerConfig::Token& token : extra_) special.insert(token.listed.token.content);
    for (const auto& [content, value] : tokens.value().items()) {
      TokenizerConfig::Token token;
      token.listed.token.content = content;
      ASSIGN_OR_RETURN(token.listed.token.id,
                       tokens[content].Int(0, std::numeric_limits<int32_t>::max()));
      token.listed.special = special.contains(content);
      token.listed.normalized = !token.listed.special;
      token.source = tokens[content].Place();
      by_id_.push_back(std::move(token));
    }
    return {};
  }

  void AddClassNames(const JsonField& fields) {
    const json& name = fields["tokenizer_class"].value();
    for (const ClassNames& of_class : kClassNames) {
      if (!name.is_string() || !IsOfClass(name.get_ref<const std::string&>(), of_class)) continue;
      for (const auto& [role, content] : of_class.names) {
        if (!fields[role].absent()) continue;  // null says that there is none
        TokenizerConfig::Token token;
        token.source = fields["tokenizer_class"].Place();
        token.of_class = true;
        token.listed.token.content = content;
        token.listed.special = true;
        token.listed.normalized = false;
        named_.try_emplace(role, std::move(token));
      }
    }
  }

  void ListNames() {
    config_.eos = named_["eos_token"].listed.token.content;
    for (const auto& [role, token] : named_) {
      const std::string& content = token.listed.token.content;
      if (!content.empty()) config_.names[role] = content;
    }
    for (const TokenizerConfig::Token& token : extra_) {
      config_.extra.push_back(token.listed.token.content);
    }
  }

  // Those with ids, then those with roles, which are special, then the others.
  void Order() {
    std::sort(by_id_.begin(), by_id_.end(),
              [](const auto& a, const auto& b) { return a.listed.token.id < b.listed.token.id; });
    for (TokenizerConfig::Token& token : by_id_) Add(std::move(token), false);
    for (const char* name : kNames) {
      if (const auto it = named_.find(name); it != named_.end()) {
        Add(std::move(it->second), true);
        named_.erase(it);
      }
    }
    for (auto& [name, token] : named_) Add(std::move(token), true);
    for (TokenizerConfig::Token& token : extra_) Add(std::move(token), false);
  }

  // A token that is there already stays as it is, but that a role makes it special.
  void Add(TokenizerConfig::Token token, bool has_role) {
    if (token.listed.token.content.empty()) return;
    const auto [place, added] =
        places_.try_emplace(token.listed.token.content, config_.tokens.size());
    if (added) config_.tokens.push_back(std::move(token));
    if (!has_role) return;
    config_.tokens[place->second].has_role = true;
    config_.tokens[place->second].listed.special = true;
  }

  const std::string& dir_;
  std::vector<TokenizerConfig::Token> by_id_, extra_;
  std::map<std::string, TokenizerConfig::Token> named_;
  std::map<std::string, size_t> places_;  // by content, in config_.tokens
  TokenizerConfig config_;
};

}  // namespace

Result<ListedToken> ListedToken::Read(const JsonField& entry) {
  ListedToken read;
  ASSIGN_OR_RETURN(read.token.content, entry["content"].Text());
  ASSIGN_OR_RETURN(read.special, entry["special"].Flag(false));
  ASSIGN_OR_RETURN(read.normalized, entry["normalized"].Flag(!read.special));
  ASSIGN_OR_RETURN(read.token.strip_left, entry["lstrip"].Flag(false));
  ASSIGN_OR_RETURN(read.token.strip_right, entry["rstrip"].Flag(false));
  ASSIGN_OR_RETURN(read.token.single_word, entry["single_word"].Flag(false));
  return read;
}

Result<TokenizerConfig> TokenizerConfig::Read(const std::string& dir) {
  return ConfigReader(dir).Read();
}

}  // namespace kvcake
