// How long is the wait for the first token under each policy, from slow links to fast ones, and how
// far is that from the least that any split could take?
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/ttft_cell.h"
#include "bench/ttft_svg.h"
#include "store/store_dir.h"

namespace kvcake::bench {
namespace {

struct Prompt {
  std::string model;
  int context = 0;
};

struct Measured {
  Prompt prompt;
  TtftCell cell;
};

// All cells of one prompt: every ratio, then the variants one at a time; with `full` every
// combination. Falling `present`.
std::vector<TtftSpec> Specs(const TtftOptions& options) {
  std::vector<TtftSpec> specs;
  std::vector<double> presents = options.presents;
  std::sort(presents.begin(), presents.end(), std::greater<>());
  for (double present : presents) {
    for (double latency_s : options.latencies_s) {
      const bool plain = present == presents[0] && latency_s == options.latencies_s[0];
      const bool variant = present == presents[0] || latency_s == options.latencies_s[0];
      if (!options.full && !variant) continue;
      for (double ratio : plain || options.full ? options.ratios : options.variant_ratios) {
        specs.push_back({.ratio = ratio, .latency_s = latency_s, .present = present});
      }
    }
  }
  return specs;
}

nlohmann::ordered_json ToJson(const std::vector<Measured>& all) {
  auto json = nlohmann::ordered_json::array();
  for (const auto& [prompt, cell] : all) {
    for (size_t i = 0; i < kTtftPolicies.size(); ++i) {
      if (cell.ttft_s[i].empty()) continue;
      json.push_back({{"model", prompt.model},
                      {"context", prompt.context},
                      {"ratio", cell.spec.ratio},
                      {"latency_ms", cell.spec.latency_s * 1e3},
                      {"present", cell.spec.present},
                      {"policy", PolicyName(kTtftPolicies[i])},
                      {"ttft_s", Median(cell.ttft_s[i])},
                      {"bound_s", cell.bound_s()},
                      {"bound_fractional_s", cell.bound_fractional_s()},
                      {"efficiency", cell.efficiency(kTtftPolicies[i])},
                      {"repeats", cell.ttft_s[i]},
                      {"cpu", CpuName()}});
    }
  }
  return json;
}

void PrintHeader(const Prompt& prompt) {
  fmt::print("\n{}, {} tokens\n", prompt.model, prompt.context);
  fmt::print("{:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6} {:>7} {:>7} {:>7}\n",
             "load/", "latency", "present", "compute", "load", "published", "cake", "bound",
             "bound/", "vs", "1/x_io+", "meet", "spread");
  fmt::print("{:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6} {:>7} {:>7} {:>7}\n",
             "compute", "ms", "%", "s", "s", "s", "s", "s", "cake", "better", "1/x_c", "at", "");
}

void Print(const TtftCell& cell) {
  const bool ran = !cell.of(Policy::kLoad).empty();
  fmt::print(
      "{:>8g} {:>8g} {:>8.0f} {:>9.3f} {:>8.3f}{} {:>9.3f} {:>9.3f} {:>9.3f} {:>8.1f}% "
      "{:>5.2f}x {:>7.2f} {:>7} {:>6.2f}x\n",
      cell.spec.ratio, cell.spec.latency_s * 1e3, 100 * cell.spec.present,
      cell.ttft(Policy::kCompute), Median(cell.load_s), ran ? " " : "~",
      cell.ttft(Policy::kPublished), cell.ttft(Policy::kCake), cell.bound_s(),
      100 * cell.efficiency(), cell.against_better(), cell.overlap(), cell.meeting_token,
      cell.spread());
  std::fflush(stdout);
}

void Summarise(const std::vector<Measured>& all) {
  double sum = 0, least = 1e9, worst = 0, overlap = 0, overlap_max = 0, published = 0;
  for (const auto& [prompt, cell] : all) {
    sum += cell.efficiency();
    least = std::min(least, cell.efficiency());
    worst = std::max(worst, cell.against_better());
    overlap += cell.overlap();
    overlap_max = std::max(overlap_max, cell.overlap());
    published += cell.efficiency(Policy::kPublished);
  }
  const auto n = static_cast<double>(all.size());
  fmt::print(
      "\nbound/cake: mean {:.3f}, least {:.3f} (as published: mean {:.3f})\n"
      "cake against the better of compute-only and load-only: at most {:.3f}x\n"
      "1/x_io + 1/x_compute: mean {:.2f}, at most {:.2f} (the paper's tables: averages 0.99 to "
      "1.05, at most 1.27)\n"
      "~ loading alone was not run at a ratio beyond {}: the link's own pace\n",
      sum / n, least, published / n, worst, overlap / n, overlap_max, kLoadOnlyRatioMax);
}

// Every cell of one prompt.
Status MeasurePrompt(const TtftOptions& options, const std::string& model_dir, const Prompt& prompt,
                     std::vector<Measured>* all) {
  const std::string store = CacheDir() + "/bench-ttft";
  (void)ClearStore(store);  // of the last run, if there was one
  ASSIGN_OR_RETURN(const auto runtime,
                   Runtime::Create({.model_dir = model_dir,
                                    .stores = {{.dir = store, .load_rate_bytes_per_s = 1e12}},
                                    .threads = options.threads}));
  if (prompt.context + kAnswerTokens > runtime->config().max_positions) {
    fmt::print("\n{}: its context of {} has no room for {} tokens\n", prompt.model,
               runtime->config().max_positions, prompt.context);
    return {};
  }
  ASSIGN_OR_RETURN(TtftBench bench, TtftBench::Create(*runtime, prompt.context));
  PrintHeader(prompt);
  for (const TtftSpec& spec : Specs(options)) {
    ASSIGN_OR_RETURN(TtftCell cell, bench.Measure(spec, options.repeats));
    Print(cell);
    all->push_back({prompt, std::move(cell)});
  }
  return ClearStore(store).map([](const auto&) {});
}

// The plain cells of the last prompt.
std::vector<TtftCell> ToDraw(const std::vector<Measured>& all) {
  std::vector<TtftCell> cells;
  const TtftCell& first = all.front().cell;
  for (const auto& [prompt, cell] : all) {
    const bool last =
        prompt.model == all.back().prompt.model && prompt.context == all.back().prompt.context;
    const bool plain =
        cell.spec.present == first.spec.present && cell.spec.latency_s == first.spec.latency_s;
    if (last && plain) cells.push_back(cell);
  }
  return cells;
}

}  // namespace

Status RunTtft(const TtftOptions& given) {
  TtftOptions options = given;
  if (options.full) {
    options.models = {"smollm2-135m", "llama-3.2-1b", "models/demo"};
    options.contexts = {2048, 4096, 8192, 16384};
  }
  fmt::print("{}; {} repeats, medians\n", CpuName(), options.repeats);
  std::vector<Measured> all;
  for (const std::string& model : options.models) {
    std::string dir = model;
    const bool arch = model.find('/') == std::string::npos;
    if (arch) {
      ASSIGN_OR_RETURN(dir, SynthModelDir(model));
    }
    for (int context : options.contexts) {
      RETURN_IF_ERROR(MeasurePrompt(options, dir, {model, context}, &all));
      if (!options.json.empty()) RETURN_IF_ERROR(WriteJson(options.json, ToJson(all)));
    }
  }
  if (all.empty()) return {};
  Summarise(all);
  if (!options.svg.empty()) {
    const auto cells = ToDraw(all);
    const std::string title = fmt::format("time to first token, {} at {} tokens",
                                          all.back().prompt.model, all.back().prompt.context);
    RETURN_IF_ERROR(WriteFile(options.svg, DrawTtft(cells, title)));
    fmt::print("picture: {}\n", options.svg);
  }
  return {};
}

}  // namespace kvcake::bench
