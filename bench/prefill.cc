// How fast is prefill, as a share of this machine's matmul rate measured in the same run?
#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/harness.h"
#include "bench/matmul_peak.h"

namespace kvcake::bench {
namespace {

// Multiply-adds count as two; causal attention once; logits for the last token only.
double PrefillFlops(const ModelConfig& config, int64_t tokens) {
  const int64_t hidden = config.hidden_size, q = int64_t{config.heads} * config.head_dim,
                kv = int64_t{config.kv_heads} * config.head_dim;
  const int64_t weights =
      config.layers * (hidden * (2 * q + 2 * kv) + 3 * hidden * int64_t{config.intermediate_size});
  const double pairs = 0.5 * static_cast<double>(tokens) * (tokens + 1);
  return 2.0 * weights * tokens + 4.0 * config.layers * q * pairs +
         2.0 * hidden * config.vocab_size;
}

uint64_t PeakRssBytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) << 10;
}

}  // namespace

Status RunPrefill(const PrefillOptions& options) {
  RuntimeOptions runtime_options{
      .model_dir = options.model_dir, .threads = options.threads, .weights = options.weights};
  if (runtime_options.model_dir.empty()) {
    ASSIGN_OR_RETURN(runtime_options.model_dir, SynthModelDir(options.arch));
  }
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(runtime_options));
  const bool bf16 = runtime->model().numeric_path() == NumericPath::kBf16Dot;
  const std::string name = options.model_dir.empty() ? options.arch : options.model_dir;
  std::vector<MatmulRate> rates = MeasureMatmulRates(runtime->threads());

  // The rate is measured again around every prompt: shared machines change under one's feet.
  std::vector<std::vector<double>> seconds(options.tokens.size());
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (size_t i = 0; i < options.tokens.size(); ++i) {
      const auto prompt = RandomPrompt(options.tokens[i], runtime->config().vocab_size, repeat);
      ASSIGN_OR_RETURN(const Completion done,
                       RunCold(*runtime, prompt, Policy::kCompute, 1, /*store=*/false));
      seconds[i].push_back(done.ttft_s);
    }
    const std::vector<MatmulRate> again = MeasureMatmulRates(runtime->threads());
    for (size_t i = 0; i < rates.size(); ++i) {
      rates[i].flops_per_s = std::max(rates[i].flops_per_s, again[i].flops_per_s);
    }
  }
  const double peak = BestRate(rates, bf16);

  fmt::print("{}, {} threads\n", CpuName(), runtime->threads().size());
  for (const MatmulRate& rate : rates) {
    fmt::print("  matmul {:<18} {:7.1f} GFLOP/s\n", rate.what, rate.flops_per_s / 1e9);
  }
  fmt::print("{:<20} {:>7} {:>12} {:>10} {:>14}\n", "model", "tokens", "tokens/s", "GFLOP/s",
             "share of peak");
  auto json = nlohmann::ordered_json::array();
  for (size_t i = 0; i < options.tokens.size(); ++i) {
    const int tokens = options.tokens[i];
    const double median = Median(seconds[i]);
    const double rate = PrefillFlops(runtime->config(), tokens) / median;
    fmt::print("{:<20} {:>7} {:>12.1f} {:>10.1f} {:>13.1f}%\n", name, tokens, tokens / median,
               rate / 1e9, 100 * rate / peak);
    std::vector<double> repeats;
    for (double s : seconds[i]) repeats.push_back(tokens / s);
    json.push_back({{"model", name},
                    {"tokens", tokens},
                    {"tok_per_s", tokens / median},
                    {"share_of_peak", rate / peak},
                    {"peak_gflops", peak / 1e9},
                    {"dtype", NumericPathName(runtime->model().numeric_path())},
                    {"cpu", CpuName()},
                    {"peak_rss_bytes", PeakRssBytes()},
                    {"repeats", repeats}});
  }
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
