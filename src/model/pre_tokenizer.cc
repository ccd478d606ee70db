#include "model/pre_tokenizer.h"

#include <utility>

#include "base/utf8.h"
#include "model/byte_level.h"
#include "model/normalizer.h"

namespace kvcake {

namespace {

// GPT-2's words, built into Hugging Face's ByteLevel.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Punctuation as Hugging Face has it: that of ASCII, and that of Unicode 8.
constexpr const char* kPunctuation =
    R"((?![\x{61D}\x{9FD}\x{A76}\x{C77}\x{C84}\x{1B7D}\x{1B7E}\x{2E43}-\x{2E4F}\x{2E52}-\x{2E5D})"
    R"(\x{10EAD}\x{10F55}-\x{10F59}\x{10F86}-\x{10F89}\x{1144B}-\x{1144F}\x{1145A}\x{1145B})"
    R"(\x{1145D}\x{11660}-\x{1166C}\x{116B9}\x{1183B}\x{11944}-\x{11946}\x{119E2})"
    R"(\x{11A3F}-\x{11A46}\x{11A9A}-\x{11A9C}\x{11A9E}-\x{11AA2}\x{11C41}-\x{11C45}\x{11C70})"
    R"(\x{11C71}\x{11EF7}\x{11EF8}\x{11FFF}\x{12FF1}\x{12FF2}\x{16E97}-\x{16E9A}\x{16FE2})"
    R"(\x{1E95E}\x{1E95F}])[!-\/:-@\[-`\{-~\p{P}\x{166D}\x{111C9}])";

Status ReadBehavior(const JsonField& field, SplitRegex::Behavior* behavior) {
  using Behavior = SplitRegex::Behavior;
  constexpr std::pair<const char*, Behavior> kKnown[] = {
      {"Isolated", Behavior::kIsolated},
      {"Removed", Behavior::kRemoved},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  ASSIGN_OR_RETURN(const std::string text, field.Text());
  const std::string_view value = text;
  for (const auto& [name, known] : kKnown) {
    if (value == name) {
      *behavior = known;
      return {};
    }
  }
  return field.Refuse(field.Show());
}

}  // namespace

Result<MetaspaceFields> ReadMetaspace(const JsonField& field) {
  ASSIGN_OR_RETURN(std::string replacement, field["replacement"].Text());
  size_t size = 0;
  if (replacement.empty() || (DecodeUtf8(replacement, &size), size != replacement.size())) {
    return field["replacement"].Bad("must be one character");
  }
  ASSIGN_OR_RETURN(std::string scheme, field["prepend_scheme"].Text("always"));
  if (scheme != "first" && scheme != "always" && scheme != "never") {
    return field["prepend_scheme"].Bad("must be first, always or never");
  }
  // The older spelling. Hugging Face, too, refuses what contradicts itself.
  ASSIGN_OR_RETURN(const bool prefix, field["add_prefix_space"].Flag(true));
  if (!prefix && scheme != "never") {
    return field["add_prefix_space"].Bad("is false, but prepend_scheme is not never");
  }
  return MetaspaceFields{std::move(replacement), std::move(scheme)};
}

Result<PreTokenizer> PreTokenizer::Read(const JsonField& field) {
  PreTokenizer pre;
  RETURN_IF_ERROR(pre.Add(field));
  if (pre.byte_level_ && pre.metaspace_) return field.Refuse("ByteLevel together with Metaspace");
  if (pre.spelled_) pre.steps_.push_back(Unspell());
  return pre;
}

Status PreTokenizer::Add(const JsonField& field) {
  if (field.null()) return {};
  ASSIGN_OR_RETURN(const std::string name, field["type"].Text());
  const std::string_view type = name;
  if (type == "Sequence") {
    const JsonField inner = field["pretokenizers"];
    ASSIGN_OR_RETURN(const size_t size, inner.ArraySize());
    for (size_t i = 0; i < size; ++i) RETURN_IF_ERROR(Add(inner[i]));
    return {};
  }
  if (byte_level_ && !spelled_) {
    spelled_ = true;
    steps_.push_back(Spell());
  }
  if (type == "Metaspace") return AddMetaspace(field);
  if (type != "ByteLevel") return AddSplit(field);
  if (byte_level_) return field.Refuse("a second ByteLevel");
  byte_level_ = true;
  ASSIGN_OR_RETURN(const bool prefix, field["add_prefix_space"].Flag(true));
  ASSIGN_OR_RETURN(const bool words, field["use_regex"].Flag(true));
  if (prefix) steps_.push_back(PrefixSpace());
  return words ? AddRegex(field, {.pattern = kGpt2Pattern}) : Status();
}

Status PreTokenizer::AddMetaspace(const JsonField& field) {
  ASSIGN_OR_RETURN(MetaspaceFields fields, ReadMetaspace(field));
  ASSIGN_OR_RETURN(const bool split, field["split"].Flag(true));
  using Scheme = Metaspace::Scheme;
  const Scheme scheme = fields.prepend_scheme == "first"    ? Scheme::kFirst
                        : fields.prepend_scheme == "always" ? Scheme::kAlways
                                                            : Scheme::kNever;
  metaspace_ = true;
  steps_.push_back(Metaspace{std::move(fields.replacement), scheme, split});
  return {};
}

Status PreTokenizer::AddSplit(const JsonField& field) {
  SplitRegex::Rule rule;
  ASSIGN_OR_RETURN(const std::string name, field["type"].Text());
  const std::string_view type = name;
  if (type == "Digits") {
    rule.pattern = R"(\p{N})";
    ASSIGN_OR_RETURN(const bool each, field["individual_digits"].Flag(false));
    if (!each) rule.behavior = SplitRegex::Behavior::kContiguous;
    return AddRegex(field, rule);
  }
  if (type == "Punctuation") {
    rule.pattern = kPunctuation;
    if (!field["behavior"].null()) RETURN_IF_ERROR(ReadBehavior(field["behavior"], &rule.behavior));
    return AddRegex(field, rule);
  }
  if (type != "Split") return field.Refuse(type);
  const JsonField pattern = field["pattern"];
  rule.literal = pattern["Regex"].null();
  ASSIGN_OR_RETURN(rule.pattern, pattern[rule.literal ? "String" : "Regex"].Text());
  ASSIGN_OR_RETURN(rule.invert, field["invert"].Flag(false));
  RETURN_IF_ERROR(ReadBehavior(field["behavior"], &rule.behavior));
  return AddRegex(field, rule);
}

Status PreTokenizer::AddRegex(const JsonField& field, const SplitRegex::Rule& rule) {
  auto split = SplitRegex::Compile(rule);
  if (!split) return field.Refuse(split.error().message);
  steps_.push_back(std::move(*split));
  removes_ = removes_ || rule.behavior == SplitRegex::Behavior::kRemoved;
  return {};
}

Result<PreTokenizer::Words> PreTokenizer::Split(std::string_view text, bool first) const {
  Words words;
  words.words.push_back({text, first});
  for (const Step& step : steps_) {
    RETURN_IF_ERROR(std::visit([&](const auto& s) { return Apply(s, &words); }, step));
  }
  return words;
}

Status PreTokenizer::Apply(const SplitRegex& split, Words* words) {
  std::vector<Word> smaller;
  std::vector<std::string_view> pieces;
  for (const Word& word : words->words) {
    pieces.clear();
    RETURN_IF_ERROR(split.Split(word.text, &pieces));
    for (const std::string_view piece : pieces) {
      smaller.push_back({piece, word.first && piece.data() == word.text.data()});
    }
  }
  words->words = std::move(smaller);
  return {};
}

Status PreTokenizer::Apply(const Metaspace& metaspace, Words* words) {
  std::vector<Word> smaller;
  for (const Word& word : words->words) {
    std::string_view text = word.text;
    const bool prepend = metaspace.scheme == Metaspace::Scheme::kAlways ||
                         (metaspace.scheme == Metaspace::Scheme::kFirst && word.first);
    const bool prefix =
        prepend && !text.starts_with(metaspace.replacement) && !text.starts_with(' ');
    if (prefix || text.find(' ') != std::string_view::npos) {
      std::string replaced = prefix ? metaspace.replacement : "";
      // Puts one character in the place of another: it cannot grow much.
      replaced += ReplaceAll(std::string(text), " ", metaspace.replacement, SIZE_MAX).value();
      text = words->Keep(std::move(replaced));
    }
    bool first = word.first;
    while (metaspace.split && !text.empty()) {
      const size_t end = std::min(text.find(metaspace.replacement, 1), text.size());
      smaller.push_back({text.substr(0, end), std::exchange(first, false)});
      text.remove_prefix(end);
    }
    if (!text.empty()) smaller.push_back({text, first});
  }
  words->words = std::move(smaller);
  return {};
}

Status PreTokenizer::Apply(PrefixSpace, Words* words) {
  for (Word& word : words->words) {
    if (!word.text.starts_with(' ')) word.text = words->Keep(std::string(" ").append(word.text));
  }
  return {};
}

Status PreTokenizer::Apply(Spell, Words* words) {
  for (Word& word : words->words) {
    std::string spelled;
    for (const char c : word.text) spelled += ByteAsText(static_cast<unsigned char>(c));
    word.text = words->Keep(std::move(spelled));
  }
  return {};
}

Status PreTokenizer::Apply(Unspell, Words* words) {
  for (Word& word : words->words) word.text = words->Keep(TextAsBytes(word.text).value());
  return {};
}

}  // namespace kvcake
