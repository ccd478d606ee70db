// kvcake codec: what codecs know of a model.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "app/flags.h"
#include "app/input.h"
#include "base/hash.h"
#include "bench/harness.h"
#include "bench/named_codecs.h"

namespace kvcake {
namespace {

// Shorter windows would show codecs no late positions, which move some channels of the keys.
constexpr int kWindowTokens = 8192;

struct FitFlags {
  RuntimeOptions runtime;
  std::string text_file;
  std::string out_dir = "kvcake-codec-tables";
  int tokens = kWindowTokens;
};

// The pages of the text's full chunks, and where each begins in its prompt.
struct FitPages {
  PageTable pages;
  std::vector<int64_t> positions;
};

Result<FitPages> Prefill(Runtime& runtime, std::span<const int32_t> tokens) {
  const int chunk = runtime.options().chunk_tokens;
  const int window = std::min(kWindowTokens, runtime.model().max_positions() - 1);
  FitPages all;
  for (size_t at = 0; at < tokens.size(); at += window) {
    const auto some = tokens.subspan(at, std::min<size_t>(window, tokens.size() - at));
    const std::vector<int32_t> prompt(some.begin(), some.end());
    ASSIGN_OR_RETURN(auto pages, bench::ComputedPages(runtime, prompt));
    for (size_t i = 0; i < pages.size(); ++i) {
      if (!pages[i]) continue;
      all.pages.push_back(std::move(*pages[i]));
      all.positions.push_back(static_cast<int64_t>(i) * chunk);
    }
  }
  return all;
}

Status Fit(const FitFlags& flags) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(flags.text_file));
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(flags.runtime.model_dir));
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(flags.runtime));
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens, runtime->tokenizer().Encode(text));
  tokens.resize(std::min<size_t>(tokens.size(), flags.tokens));
  ASSIGN_OR_RETURN(const FitPages fit, Prefill(*runtime, tokens));
  if (fit.pages.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                "{} has {} tokens, less than a chunk of {}: give a longer text", flags.text_file,
                tokens.size(), flags.runtime.chunk_tokens);
  }
  PagePool& pool = runtime->pool();
  const uint64_t values = 2 * pool.layout().plane_elements();
  const KvSample sample{.layout = pool.layout(),
                        .positions = fit.positions,
                        .inverse_frequencies = bench::InverseFrequencies(config),
                        .slab = [&](size_t chunk, int layer) -> std::span<const uint16_t> {
                          return {pool.Slab(fit.pages[chunk].id(), layer), values};
                        }};
  std::error_code ignored;
  std::filesystem::create_directories(flags.out_dir, ignored);
  for (const CodecRow& row : CodecRows()) {
    if (row.fit == nullptr) continue;
    for (const CodecTables& tables : row.fit(sample)) {
      const std::string path =
          fmt::format("{}/{}-{}.tables", flags.out_dir, row.name, tables.level);
      RETURN_IF_ERROR(SaveTables(tables, path));
      fmt::print("{}  {} bytes, of {} tokens, SHA-256 {}\n", path, TablesFile(tables).size(),
                 fit.pages.size() * pool.layout().chunk_tokens, ToHex(TablesDigest(tables)));
    }
  }
  return {};
}

}  // namespace

void AddCodecCommand(CLI::App& app, int* exit_code) {
  CLI::App* codec = app.add_subcommand("codec", "what codecs know of a model");
  codec->require_subcommand(1);
  auto flags = std::make_shared<FitFlags>();
  CLI::App* fit = codec->add_subcommand(
      "fit",
      "make the tables of every codec that has some, from what the model computes for a text");
  fit->add_option("--model", flags->runtime.model_dir, "model directory")->required();
  fit->add_option("--text", flags->text_file, "a text like those that will be kept; - for stdin")
      ->required();
  fit->add_option("--tokens", flags->tokens, "of that text, at most")
      ->check(CLI::Range(128, 1 << 24))
      ->capture_default_str();
  fit->add_option("--ram-capacity", flags->runtime.ram_capacity_bytes,
                  "memory for the text's KV cache")
      ->transform(SizeValue())
      ->default_str("4GiB");
  fit->add_option("--threads", flags->runtime.threads, "compute threads (default: every core)")
      ->check(CLI::Range(1, 1024));
  fit->add_option("--out", flags->out_dir, "directory for the tables")->capture_default_str();
  RunWhenChosen(fit, Fit, flags, exit_code);
}

}  // namespace kvcake
