// kvcake tokenize and detokenize: text to token ids and back, as a model's tokenizer.json says.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/flags.h"
#include "app/input.h"
#include "model/tokenizer.h"

namespace kvcake {
namespace {

struct TokenizeFlags {
  std::string model_dir;
  std::string file = "-";
  bool no_special = false;
  bool keep_special = false;
  bool json = false;
};

Status Tokenize(const TokenizeFlags& flags) {
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(flags.model_dir));
  ASSIGN_OR_RETURN(const std::string text, ReadText(flags.file));
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, tokenizer.Encode(text, !flags.no_special));
  if (flags.json) {
    fmt::print("{{\"tokens\":[{}]}}\n", fmt::join(tokens, ","));
  } else {
    fmt::print("{}\n", fmt::join(tokens, " "));
  }
  return {};
}

Status Detokenize(const TokenizeFlags& flags) {
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(flags.model_dir));
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, ReadTokens(flags.file));
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokenizer.HasToken(tokens[i])) continue;
    return Fail(ErrorCode::kInvalidArgument,
                "{}: id {} (at place {}) is no token of {}/tokenizer.json, whose largest id is {}",
                flags.file == "-" ? "stdin" : flags.file, tokens[i], i, flags.model_dir,
                tokenizer.vocab_size() - 1);
  }
  const std::string text = tokenizer.Decode(tokens, !flags.keep_special);
  if (flags.json) {
    fmt::print("{}\n", nlohmann::json({{"text", text}}).dump());
  } else {
    std::fwrite(text.data(), 1, text.size(), stdout);  // as it is: it may be piped on
  }
  return {};
}

CLI::App* AddCommand(CLI::App& app, const char* name, const char* help, int* exit_code,
                     std::shared_ptr<TokenizeFlags> flags,
                     Status (*body)(const TokenizeFlags& flags)) {
  CLI::App* command = app.add_subcommand(name, help);
  command
      ->add_option("--model", flags->model_dir,
                   "a directory with a tokenizer.json; nothing else of the model is needed")
      ->required();
  RunWhenChosen(command, body, flags, exit_code);
  return command;
}

}  // namespace

void AddTokenizeCommands(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* tokenize =
      AddCommand(app, "tokenize", "a text's token ids", exit_code, flags, Tokenize);
  tokenize->add_option("--file", flags->file, "the text (default: stdin)");
  tokenize->add_flag("--no-special", flags->no_special,
                     "without the tokens that the tokenizer adds to a prompt, such as BOS");
  tokenize->add_flag("--json", flags->json, "print {\"tokens\": [...]}");

  CLI::App* detokenize =
      AddCommand(app, "detokenize", "the text of token ids", exit_code, flags, Detokenize);
  detokenize->add_option("--file", flags->file,
                         "the ids: a JSON array, {\"tokens\": [...]}, or separated by white space "
                         "(default: stdin)");
  detokenize->add_flag("--keep-special", flags->keep_special,
                       "print special tokens, which are left out otherwise");
  detokenize->add_flag("--json", flags->json, "print {\"text\": ...}");
}

}  // namespace kvcake
