// How long is the wait for the first token under each policy, from slow links to fast ones, and how
// far is that from the least that any split could take?
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

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
        if (present == 0) break;  // no link has a say
      }
      if (present == 0) break;
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
      if (kTtftPolicies[i] != Policy::kCake) continue;
      json.back().update({{"against_better", cell.against_better()},
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

// The cells of one context, of every model.
void SummariseContext(int context, const std::vector<Measured>& all) {
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
    published += cell.efficiency(Policy::kPublished);
    cut += cell.bound_fractional_s() / cell.bound_s();
  }
  fmt::print("{:>8} {:>6} {:>8.3f} {:>7.3f} {:>9.3f} {:>8.3f}x {:>9.2f} {:>6.2f} {:>9.3f}\n",
             context, n, sum / n, least, published / n, worst, overlap / n, overlap_max, cut / n);
}

// What the planner believed, and what it cost: medians of the cells' medians.
void PrintNotes(const std::vector<Measured>& all) {
  const auto typical = [&](double CakeNotes::*of) {
    std::vector<double> values;
    for (const Measured& measured : all) {
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

void PrintWorst(const std::vector<Measured>& all) {
  constexpr size_t kWorst = 10;
  std::vector<const Measured*> order;
  for (const Measured& measured : all) order.push_back(&measured);
  const size_t count = std::min(kWorst, order.size());
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [](const Measured* a, const Measured* b) {
                      return a->cell.efficiency() < b->cell.efficiency();
                    });
  fmt::print("least efficient:\n");
  for (size_t i = 0; i < count; ++i) {
    const auto& [prompt, cell] = *order[i];
    fmt::print(
        "  {:.3f} ({:.3f}x the better, spread {:.2f}x): {} at {}, ratio {}, {} ms, {:.0f}%\n",
        cell.efficiency(), cell.against_better(), cell.spread(), prompt.model, prompt.context,
        cell.spec.ratio, cell.spec.latency_s * 1e3, 100 * cell.spec.present);
  }
}

void Summarise(const std::vector<Measured>& all) {
  fmt::print("\n{:>8} {:>6} {:>8} {:>7} {:>9} {:>9} {:>9} {:>6} {:>9}\n", "context", "cells",
             "bound/", "least", "the same,", "most vs", "1/x_io+", "most", "bound, if");
  fmt::print("{:>8} {:>6} {:>8} {:>7} {:>9} {:>9} {:>9} {:>6} {:>9}\n", "", "", "cake", "",
             "published", "better", "1/x_c", "", "cuttable");
  std::set<int> contexts;
  for (const Measured& measured : all) contexts.insert(measured.prompt.context);
  for (int context : contexts) SummariseContext(context, all);
  fmt::print(
      "1/x_io + 1/x_compute in the paper's tables: averages 0.99 to 1.05, at most 1.27\n"
      "~ loading alone was not run at a ratio beyond {}: the link's own pace\n",
      kLoadOnlyRatioMax);
  PrintNotes(all);
  PrintWorst(all);
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
