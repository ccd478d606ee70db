// How long is the wait for the first token under each policy, from slow links to fast ones, and how
// far is that from the least that any split could take?
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/scratch_dir.h"
#include "bench/shared_steps.h"
#include "bench/ttft_cell.h"
#include "bench/ttft_svg.h"

namespace kvcake::bench {
namespace {

struct Prompt {
  std::string model;
  double compute_share = 1;
  int context = 0;

  bool operator==(const Prompt&) const = default;
};

struct MeasuredPrompt {
  Prompt prompt;
  TtftCell cell;
};

// The links that the plain cells have, or the variants.
std::vector<TtftSpec> Links(const TtftOptions& options, bool variants) {
  std::vector<TtftSpec> links;
  if (variants || options.link_gbit.empty()) {
    for (double ratio : variants ? options.variant_ratios : options.ratios) {
      links.push_back({.ratio = ratio});
    }
  } else {
    for (double gbit : options.link_gbit) links.push_back({.link_gbit = gbit});
  }
  return links;
}

// All cells of one prompt: every link, then the variants one at a time; with `full` every
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
      for (TtftSpec spec : Links(options, /*variants=*/!plain && !options.full)) {
        spec.latency_s = latency_s;
        spec.present = present;
        specs.push_back(spec);
        if (present == 0) break;  // no link has a say
      }
      if (present == 0) break;
    }
  }
  return specs;
}

nlohmann::ordered_json LinkJson(const TtftSpec& spec) {
  if (!spec.link_gbit) return nullptr;
  if (std::isinf(*spec.link_gbit)) return "as it is";
  return *spec.link_gbit;
}

nlohmann::ordered_json ToJson(const TtftOptions& options, const std::vector<MeasuredPrompt>& all) {
  auto json = nlohmann::ordered_json::array();
  for (const auto& [prompt, cell] : all) {
    for (size_t i = 0; i < kTtftPolicies.size(); ++i) {
      if (cell.ttft_s[i].empty()) continue;
      json.push_back({{"model", prompt.model},
                      {"context", prompt.context},
                      {"compute_share", prompt.compute_share},
                      {"ratio", cell.spec.ratio},
                      {"link_gbit", LinkJson(cell.spec)},
                      {"latency_ms", cell.spec.latency_s * 1e3},
                      {"present", cell.spec.present},
                      {"policy", PolicyName(kTtftPolicies[i])},
                      {"ttft_s", Median(cell.ttft_s[i])},
                      {"bound_s", cell.bound_s()},
                      {"bound_fractional_s", cell.bound_fractional_s()},
                      {"efficiency", cell.efficiency(kTtftPolicies[i])},
                      {"repeats", cell.ttft_s[i]},
                      {"kv_codec", options.kv_codec},
                      {"slice_tokens", options.slice_tokens},
                      {"cpu", CpuName()},
                      {"device", DeviceName(options.path)}});
      if (kTtftPolicies[i] != Policy::kCake) continue;
      json.back().update({{"against_better", cell.against_better()},
                          {"load_s", Median(cell.load_s)},
                          {"overlap", cell.overlap()},
                          {"other_answers", cell.other_answers},
                          {"finish_error", cell.note(&CakeNotes::finish_error)},
                          {"slice_error", cell.note(&CakeNotes::slice_error)},
                          {"planning_us", cell.note(&CakeNotes::planning_us)},
                          {"planning_share", cell.note(&CakeNotes::planning_share)},
                          {"compute_slowdown", cell.note(&CakeNotes::compute_slowdown)}});
    }
  }
  return json;
}

void PrintHeader(const Prompt& prompt) {
  fmt::print("\n{}, {} tokens{}\n", prompt.model, prompt.context,
             prompt.compute_share == 1
                 ? std::string()
                 : fmt::format(", {:g}% of the compute", 100 * prompt.compute_share));
  fmt::print("{:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6} {:>7} {:>7} {:>7}\n",
             "load/", "latency", "present", "compute", "load", "published", "cake", "bound",
             "bound/", "vs", "1/x_io+", "meet", "spread");
  fmt::print("{:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6} {:>7} {:>7} {:>7}\n",
             "compute", "ms", "%", "s", "s", "s", "s", "s", "cake", "better", "1/x_c", "at", "");
}

// At the end of a row whose link has a rate of its own.
std::string LinkName(const TtftSpec& spec) {
  if (!spec.link_gbit) return {};
  return std::isinf(*spec.link_gbit) ? "  as it is" : fmt::format("  {:g} Gbit/s", *spec.link_gbit);
}

void Print(const TtftCell& cell) {
  const bool ran = !cell.of(Policy::kLoad).empty();
  const bool published = !cell.of(Policy::kPublished).empty();
  fmt::print(
      "{:>8.4g} {:>8g} {:>8.0f} {:>9.3f} {:>8.3f}{} {:>9} {:>9.3f} {:>9.3f} {:>8.1f}% "
      "{:>5.2f}x {:>7.2f} {:>7} {:>6.2f}x{}\n",
      cell.spec.ratio, cell.spec.latency_s * 1e3, 100 * cell.spec.present,
      cell.ttft(Policy::kCompute), Median(cell.load_s), ran ? " " : "~",
      published ? fmt::format("{:.3f}", cell.ttft(Policy::kPublished)) : "",
      cell.ttft(Policy::kCake), cell.bound_s(), 100 * cell.efficiency(), cell.against_better(),
      cell.overlap(), cell.meeting_token, cell.spread(), LinkName(cell.spec));
  std::fflush(stdout);
}

// The cells of one context, of every model.
void SummariseContext(int context, const std::vector<MeasuredPrompt>& all) {
  double sum = 0, least = 1e9, worst = 0, overlap = 0, overlap_max = 0, published = 0, cut = 0;
  int n = 0;
  for (const auto& [prompt, cell] : all) {
    if (prompt.context != context) continue;
    ++n;
    sum += cell.efficiency();
    least = std::min(least, cell.efficiency());
    worst = std::max(worst, cell.against_better());
    overlap += cell.overlap();
    overlap_max = std::max(overlap_max, cell.overlap());
    if (!cell.of(Policy::kPublished).empty()) published += cell.efficiency(Policy::kPublished);
    cut += cell.bound_fractional_s() / cell.bound_s();
  }
  fmt::print("{:>8} {:>6} {:>8.3f} {:>7.3f} {:>9} {:>8.3f}x {:>9.2f} {:>6.2f} {:>9.3f}\n", context,
             n, sum / n, least, published > 0 ? fmt::format("{:.3f}", published / n) : "", worst,
             overlap / n, overlap_max, cut / n);
}

// What the planner believed, and what it cost: medians of the cells' medians.
void PrintNotes(const std::vector<MeasuredPrompt>& all) {
  const auto typical = [&](double CakeNotes::*of) {
    std::vector<double> values;
    for (const MeasuredPrompt& measured : all) {
      if (const double value = measured.cell.note(of); value > 0) values.push_back(value);
    }
    return values.empty() ? 0 : Median(std::move(values));
  };
  fmt::print(
      "predictions were off by {:.1f}% (of the end) and {:.1f}% (of a slice); planning, claims and "
      "report took {:.0f} us a turn, {:.3f}% of the time; a slice beside loads took {:.3f}x its "
      "time alone (medians of cells)\n",
      100 * typical(&CakeNotes::finish_error), 100 * typical(&CakeNotes::slice_error),
      typical(&CakeNotes::planning_us), 100 * typical(&CakeNotes::planning_share),
      typical(&CakeNotes::compute_slowdown));
}

void PrintWorst(const std::vector<MeasuredPrompt>& all) {
  constexpr size_t kWorst = 10;
  std::vector<const MeasuredPrompt*> order;
  for (const MeasuredPrompt& measured : all) order.push_back(&measured);
  const size_t count = std::min(kWorst, order.size());
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [](const MeasuredPrompt* a, const MeasuredPrompt* b) {
                      return a->cell.efficiency() < b->cell.efficiency();
                    });
  fmt::print("least efficient:\n");
  for (size_t i = 0; i < count; ++i) {
    const auto& [prompt, cell] = *order[i];
    fmt::print(
        "  {:.3f} ({:.3f}x the better, spread {:.2f}x): {} at {}, ratio {:.4g}, {} ms, {:.0f}%\n",
        cell.efficiency(), cell.against_better(), cell.spread(), prompt.model, prompt.context,
        cell.spec.ratio, cell.spec.latency_s * 1e3, 100 * cell.spec.present);
  }
}

void Summarise(const std::vector<MeasuredPrompt>& all) {
  fmt::print("\n{:>8} {:>6} {:>8} {:>7} {:>9} {:>9} {:>9} {:>6} {:>9}\n", "context", "cells",
             "bound/", "least", "the same,", "most vs", "1/x_io+", "most", "bound, if");
  fmt::print("{:>8} {:>6} {:>8} {:>7} {:>9} {:>9} {:>9} {:>6} {:>9}\n", "", "", "cake", "",
             "published", "better", "1/x_c", "", "cuttable");
  std::set<int> contexts;
  for (const MeasuredPrompt& measured : all) contexts.insert(measured.prompt.context);
  for (int context : contexts) SummariseContext(context, all);
  fmt::print(
      "1/x_io + 1/x_compute in the paper's tables: averages 0.99 to 1.05, at most 1.27\n"
      "~ loading alone was not run at a ratio beyond {}: the link's own pace\n",
      kLoadOnlyRatioMax);
  PrintNotes(all);
  PrintWorst(all);
  int others = 0;
  for (const MeasuredPrompt& measured : all) others += measured.cell.other_answers;
  if (others > 0) fmt::print("{} runs answered otherwise than computing did\n", others);
}

// Every prompt of a model that gets a share of the compute.
Status MeasureModel(const TtftOptions& options, const std::string& model, double share,
                    std::vector<MeasuredPrompt>* all) {
  ASSIGN_OR_RETURN(const std::string model_dir, ModelDirNamed(model));
  ASSIGN_OR_RETURN(const ScratchDir store, ScratchDir::Make(options.dir, "ttft"));
  RuntimeOptions runtime_options{.model_dir = model_dir,
                                 .stores = {{.dir = store.path(),
                                             .capacity_bytes = 1ull << 50,
                                             .load_rate_bytes_per_s = 1e12}},
                                 .slice_tokens = options.slice_tokens,
                                 .threads = options.threads,
                                 .path = options.path};
  ASSIGN_OR_RETURN(const CodecRow* const codec, CodecNamed(options.kv_codec));
  runtime_options.stores[0].codec = codec->codec;
  runtime_options.stores[0].codec_tables = options.codec_tables;
  // What is kept shall come over the link.
  SetPageBytes(runtime_options.ram_capacity_bytes, &runtime_options);
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(runtime_options));
  std::optional<SpeedTrace> shares;
  if (share < 1) shares = SpeedTrace({{.at_s = 0, .speed = share}});
  ASSIGN_OR_RETURN(const auto shared, SharedSteps::Install(*runtime, shares));
  for (int context : options.contexts) {
    const Prompt prompt{.model = model, .compute_share = share, .context = context};
    if (context + kAnswerTokens > runtime->config().max_positions) {
      fmt::print("\n{}: its context of {} has no room for {} tokens\n", model,
                 runtime->config().max_positions, context);
      continue;
    }
    ASSIGN_OR_RETURN(TtftBench bench,
                     TtftBench::Create(*runtime, {context, options.repeats, options.published}));
    PrintHeader(prompt);
    for (const TtftSpec& spec : Specs(options)) {
      ASSIGN_OR_RETURN(TtftCell cell, bench.Measure(spec));
      Print(cell);
      all->push_back({prompt, std::move(cell)});
      if (!options.json.empty()) RETURN_IF_ERROR(WriteJson(options.json, ToJson(options, *all)));
    }
  }
  return {};
}

// The plain cells of the last prompt.
std::vector<TtftCell> ToDraw(const std::vector<MeasuredPrompt>& all) {
  std::vector<TtftCell> cells;
  const TtftCell& first = all.front().cell;
  for (const auto& [prompt, cell] : all) {
    const bool plain =
        cell.spec.present == first.spec.present && cell.spec.latency_s == first.spec.latency_s;
    if (prompt == all.back().prompt && plain) cells.push_back(cell);
  }
  std::ranges::sort(cells, {}, [](const TtftCell& cell) { return cell.spec.ratio; });
  return cells;
}

}  // namespace

Status RunTtft(const TtftOptions& given) {
  TtftOptions options = given;
  if (options.full) {
    options.models = {"smollm2-135m", "llama-3.2-1b", "models/demo"};
    options.contexts = {2048, 4096, 8192, 16384};
  }
  if (options.slice_tokens == 0) options.slice_tokens = DefaultSliceTokens(options.path);
  RETURN_IF_ERROR(CheckDevice(options.path));
  fmt::print("{}; {} repeats, medians\n", DeviceName(options.path), options.repeats);
  std::vector<MeasuredPrompt> all;
  for (const std::string& model : options.models) {
    for (double share : options.compute_shares) {
      RETURN_IF_ERROR(MeasureModel(options, model, share, &all));
    }
  }
  if (all.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "no model has room for any of these --context");
  }
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
