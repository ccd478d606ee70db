// kvcake codec: what codecs know of a model.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "app/flags.h"
#include "app/input.h"
#include "base/hash.h"
#include "bench/harness.h"
#include "bench/named_codecs.h"
#include "codec/codec_tables.h"
#include "io/file_system.h"

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

// All of them are held to the end, and the last window's unfinished ones.
Status CheckRoom(Runtime& runtime, size_t tokens) {
  const uint64_t needed = tokens / runtime.options().chunk_tokens + 2;
  const PagePool& pool = runtime.pool();
  if (needed <= pool.pages()) return {};
  return Fail(ErrorCode::kResourceExhausted,
              "the KV cache of {} tokens needs {} pages of {} bytes, and --ram-capacity has {}: "
              "raise it, or lower --tokens",
              tokens, needed, pool.layout().page_bytes(), pool.pages());
}

Result<FitPages> Prefill(Runtime& runtime, std::span<const int32_t> tokens) {
  RETURN_IF_ERROR(CheckRoom(runtime, tokens.size()));
  const int chunk = runtime.options().chunk_tokens;
  const int window = std::min(kWindowTokens, runtime.model().max_positions() - 1);
  FitPages all;
  for (size_t at = 0; at < tokens.size(); at += window) {
    const auto some = tokens.subspan(at, std::min<size_t>(window, tokens.size() - at));
    const std::vector<int32_t> prompt(some.begin(), some.end());
    // What a window before has in common with it is in memory: the numbers are the same.
    RETURN_IF_ERROR(
        runtime.engine()
            .Answer({.prompt = prompt, .max_tokens = 1, .store = false, .policy = Policy::kCompute})
            .map([](auto) {}));
    auto pages = bench::PagesInMemory(runtime, prompt);
    for (size_t i = 0; i < pages.size(); ++i) {
      if (!pages[i]) continue;
      all.pages.push_back(std::move(*pages[i]));
      all.positions.push_back(static_cast<int64_t>(i) * chunk);
    }
  }
  return all;
}

// No codec that has tables keeps others, or larger ones than tables can say.
Status CheckNumbers(const KvSample& sample) {
  constexpr uint32_t kLeastTooLarge = 0x5d80;  // 2^60 as a bf16, which infinities and NaNs follow
  for (int layer = 0; layer < sample.layout.layers; ++layer) {
    for (size_t chunk = 0; chunk < sample.chunks(); ++chunk) {
      for (const uint16_t value : sample.slab(chunk, layer)) {
        if ((value & 0x7fff) < kLeastTooLarge) continue;
        return Fail(ErrorCode::kUnsupported,
                    "the model's KV cache has numbers in layer {} that are not finite, or 2^60 "
                    "and more: codecs with tables keep none such",
                    layer);
      }
    }
  }
  return {};
}

Status MakeOutDir(const std::string& dir) {
  RETURN_IF_ERROR(bench::MakeDir(dir));
  if (access(dir.c_str(), W_OK | X_OK) == 0) return {};
  return tl::unexpected<Error>(ErrnoError(errno, "write to", dir));
}

Status Fit(const FitFlags& flags) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(flags.text_file));
  ASSIGN_OR_RETURN(const ModelConfig config,
                   LoadModelConfig(flags.runtime.model_dir, flags.runtime.config));
  RETURN_IF_ERROR(MakeOutDir(flags.out_dir));  // before what takes long
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
  RETURN_IF_ERROR(CheckNumbers(sample));
  const uint32_t model = TablesModel(runtime->model().identity());
  for (const CodecRow& row : CodecRows()) {
    if (row.fit == nullptr) continue;
    for (CodecTables& tables : row.fit(sample)) {
      tables.model = model;
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
  AddModelConfigFlags(*fit, &flags->runtime.config);
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
