// How fast is prefill, as a share of this machine's matmul rate measured in the same run?
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "base/peak_rss.h"
#include "bench/benches.h"
#include "bench/harness.h"
#include "bench/matmul_peak.h"
#include "bench/work.h"

namespace kvcake::bench {
namespace {

constexpr int kLongTokens = 2048;  // longer prompts run once, without --full
constexpr int64_t kSmallModel = 500'000'000;

// One model at one length.
struct PrefillCell {
  std::string model;
  int tokens = 0;
  double flops = 0;
  MatmulType type = MatmulType::kBf16;
  uint64_t weights_bytes = 0, kv_bytes = 0;
  uint64_t peak_rss_bytes = 0;  // from loading the model to the prompt's end, in the first repeat
  std::vector<double> tokens_per_s = {};
};

std::vector<int> TokensFor(const PrefillOptions& options, const ModelConfig& config) {
  std::vector<int> tokens = options.tokens;
  if (tokens.empty()) {
    tokens = {512, 2048, 8192};
    if (config.parameters() < kSmallModel) tokens.push_back(16384);
    std::erase_if(tokens, [&](int length) { return length > config.max_positions; });
    if (tokens.empty()) tokens.push_back(config.max_positions);
  }
  std::sort(tokens.begin(), tokens.end());  // memory touched by a longer prompt stays
  return tokens;
}

// Before anything is measured, which may take long.
Status CheckTokens(const PrefillOptions& options, const std::string& name) {
  ASSIGN_OR_RETURN(const std::string dir, ModelDirOf(options.model_dir, name));
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(dir));
  const int longest = TokensFor(options, config).back();
  if (longest <= config.max_positions) return {};
  return Fail(ErrorCode::kInvalidArgument, "--tokens {} is longer than the {} of {}", longest,
              config.max_positions, name);
}

Result<std::vector<PrefillCell>> MeasureModel(const PrefillOptions& options, const std::string& dir,
                                              const std::string& name, MatmulPeak* peak) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(dir));
  const std::vector<int> lengths = TokensFor(options, config);
  RuntimeOptions runtime_options{.model_dir = dir,
                                 .attention_backend = options.attention_backend,
                                 .threads = options.threads,
                                 .path = options.path,
                                 .weights = options.weights};
  if (OnCuda(options.path)) runtime_options.slice_tokens = 8192;  // enough rows for all of a card
  const KvLayout layout = TransformerModel::LayoutFor(config, runtime_options.chunk_tokens);
  const uint64_t pages = lengths.back() / layout.chunk_tokens + 1;
  SetPageBytes((pages + kSparePages) * layout.page_bytes(), &runtime_options);

  if (!ResetPeakRss()) fmt::print(stderr, "the peak of memory is that of the whole run\n");
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(runtime_options));
  const uint64_t load_rss = PeakRssBytes();
  const ModelWork work(config);
  const NumericPath path = runtime->model().numeric_path();
  std::vector<PrefillCell> cells;
  for (int tokens : lengths) {
    cells.push_back({.model = name,
                     .tokens = tokens,
                     .flops = work.Prefill(tokens),
                     .type = MatmulTypeOf(path, options.weights),
                     .weights_bytes = WeightBytes(options.weights) * config.parameters(),
                     .kv_bytes = layout.bytes_per_token() * tokens,
                     .peak_rss_bytes = load_rss});
  }
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    // Measured again before every repeat: shared machines change under one's feet.
    peak->Measure(runtime->threads(), path);
    for (PrefillCell& cell : cells) {
      if (repeat > 0 && cell.tokens > kLongTokens && !options.full) continue;
      ResetPeakRss();
      const auto prompt = RandomPrompt(cell.tokens, config.vocab_size, repeat);
      ASSIGN_OR_RETURN(const Completion done,
                       RunCold(*runtime, prompt, Policy::kCompute, 1, /*store=*/false));
      cell.tokens_per_s.push_back(cell.tokens / done.ttft_s);
      if (repeat == 0) cell.peak_rss_bytes = std::max(cell.peak_rss_bytes, PeakRssBytes());
      fmt::print(stderr, "{}, {} tokens: {:.1f} tokens/s\n", name, cell.tokens,
                 cell.tokens_per_s.back());
    }
  }
  peak->Measure(runtime->threads(), path);
  return cells;
}

nlohmann::ordered_json Report(const std::vector<PrefillCell>& cells, const MatmulPeak& peak,
                              NumericPath path) {
  fmt::print("{:<14} {:>6} {:>25} {:>8} {:>5} {:>6} {:>10} {:>26}\n", "model", "tokens",
             "tokens/s (min - max)", "GFLOP/s", "type", "share", "peak RSS",
             "beyond weights and KV");
  auto json = nlohmann::ordered_json::array();
  for (const PrefillCell& cell : cells) {
    const double median = Median(cell.tokens_per_s);
    const double rate = cell.flops / cell.tokens * median, share = rate / peak.Best(cell.type);
    const double beyond = static_cast<double>(cell.peak_rss_bytes) -
                          static_cast<double>(cell.weights_bytes + cell.kv_bytes);
    fmt::print("{:<14} {:>6} {:>25} {:>8.1f} {:>5} {:>5.1f}% {:>6} MiB {:>22.0f} MiB\n", cell.model,
               cell.tokens, Spread(cell.tokens_per_s, 1), rate / 1e9, MatmulTypeName(cell.type),
               100 * share, cell.peak_rss_bytes >> 20, beyond / (1 << 20));
    json.push_back({{"model", cell.model},
                    {"tokens", cell.tokens},
                    {"tok_per_s", median},
                    {"share_of_peak", share},
                    {"peak_gflops", peak.Best(cell.type) / 1e9},
                    {"dtype", MatmulTypeName(cell.type)},
                    {"cpu", CpuName()},
                    {"device", DeviceName(path)},
                    {"peak_rss_bytes", cell.peak_rss_bytes},
                    {"weights_bytes", cell.weights_bytes},
                    {"kv_bytes", cell.kv_bytes},
                    {"repeats", cell.tokens_per_s}});
  }
  return json;
}

}  // namespace

Status RunPrefill(const PrefillOptions& options) {
  MatmulPeak peak;
  std::vector<PrefillCell> cells;
  const std::vector<std::string> names = ModelNames(options.model_dir, options.archs);
  for (const std::string& name : names) RETURN_IF_ERROR(CheckTokens(options, name));
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(const std::string dir, ModelDirOf(options.model_dir, name));
    ASSIGN_OR_RETURN(const auto measured, MeasureModel(options, dir, name, &peak));
    cells.insert(cells.end(), measured.begin(), measured.end());
  }
  const int threads = options.threads > 0 ? options.threads : UsableCores();
  fmt::print("{}, {} threads\n", DeviceName(options.path), threads);
  peak.Print();
  const nlohmann::ordered_json json = Report(cells, peak, options.path);
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
