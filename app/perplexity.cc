// kvcake perplexity: how likely a model finds a text.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "app/flags.h"
#include "app/input.h"
#include "model/score.h"

namespace kvcake {
namespace {

struct PerplexityFlags {
  RuntimeOptions runtime;
  std::string text_file, tokens_file;
  bool json = false;
};

Result<std::vector<int32_t>> Tokens(const PerplexityFlags& flags) {
  if (!flags.tokens_file.empty()) return ReadTokens(flags.tokens_file);
  ASSIGN_OR_RETURN(const std::string text, ReadText(flags.text_file));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(flags.runtime.model_dir));
  return tokenizer.Encode(text);
}

// The loss of token i + 1 after tokens 0 to i, at [i].
Result<std::vector<double>> Losses(const PerplexityFlags& flags, std::span<const int32_t> tokens,
                                   NumericPath* path) {
  const RuntimeOptions& options = flags.runtime;
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.model_dir, options.config));
  ASSIGN_OR_RETURN(PageMemory memory, PageMemoryOf(options.path));
  ASSIGN_OR_RETURN(const auto pool,
                   PagePool::Create(TransformerModel::LayoutFor(config, options.chunk_tokens),
                                    options.ram_capacity_bytes, std::move(memory)));
  ASSIGN_OR_RETURN(const auto threads, MakeThreadPool(options));
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::Open(options.model_dir));
  // Every token of a slice has logits: no more rows of them than the text needs.
  const int rows = static_cast<int>(
      std::min(static_cast<size_t>(options.slice_tokens), std::max<size_t>(tokens.size(), 1)));
  ASSIGN_OR_RETURN(const auto model,
                   TransformerModel::Create(config, WeightSource::FromFiles(files), *pool, *threads,
                                            {.max_batch_tokens = rows,
                                             .max_slices = 1,
                                             .path = options.path,
                                             .weights = options.weights}));
  *path = model->numeric_path();
  std::vector<double> losses;
  RETURN_IF_ERROR(VisitLogits(*model, *pool, tokens, {.slice_tokens = rows},
                              [&](int position, std::span<const float> logits) {
                                const size_t next = static_cast<size_t>(position) + 1;
                                if (next == tokens.size()) return;
                                losses.push_back(NegativeLogLikelihood(logits, tokens[next]));
                              }));
  return losses;
}

Status Score(const PerplexityFlags& flags) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, Tokens(flags));
  if (tokens.size() < 2) {
    return Fail(ErrorCode::kInvalidArgument,
                "{} has {} tokens; at least 2 are needed, as the first is given and not predicted",
                flags.tokens_file.empty() ? flags.text_file : flags.tokens_file, tokens.size());
  }
  NumericPath path = NumericPath::kUnknown;
  ASSIGN_OR_RETURN(const std::vector<double> losses, Losses(flags, tokens, &path));
  const double mean =
      std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  if (flags.json) {
    const nlohmann::ordered_json json = {{"nll", losses},
                                         {"mean_nll", mean},
                                         {"perplexity", std::exp(mean)},
                                         {"numeric_path", NumericPathName(path)},
                                         {"weights", WeightFormatName(flags.runtime.weights)}};
    fmt::print("{}\n", json.dump());
    return {};
  }
  fmt::print("tokens      {}\nmean nll    {:.5f}\nperplexity  {:.4f}\n", tokens.size(), mean,
             std::exp(mean));
  return {};
}

}  // namespace

void AddPerplexityCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* command =
      app.add_subcommand("perplexity", "how likely a model finds each token of a text");
  AddModelFlags(*command, &flags->runtime);
  CLI::Option_group* input = command->add_option_group("input", "what to score; one of");
  input->add_option("--file", flags->text_file,
                    "a text, tokenized as a prompt would be; - for stdin");
  input->add_option("--tokens", flags->tokens_file,
                    "a file with token ids: a JSON array, {\"tokens\": [...]}, or separated by "
                    "white space; - for stdin");
  input->require_option(1);
  flags->runtime.slice_tokens = 512;  // each of them has logits
  command
      ->add_option("--slice-tokens", flags->runtime.slice_tokens,
                   "tokens of one forward pass; changes no result")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_flag("--json", flags->json,
                    "print {\"nll\": [of each token but the first, natural log], \"mean_nll\", "
                    "\"perplexity\", \"numeric_path\", \"weights\"}");
  RunWhenChosen(command, Score, flags, exit_code);
}

}  // namespace kvcake
