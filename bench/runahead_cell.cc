#include "bench/runahead_cell.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/harness.h"
#include "runahead/partition_analytic.h"
#include "runahead/partition_search.h"

namespace kvcake::bench {
namespace {

bool IsSingle(const RankMethodPlan& plan) { return plan.partition.bounds.empty(); }

Result<RankRun> RunOnce(RankTrial& trial, const RankMethodPlan& plan,
                        const std::vector<int32_t>& prompt, bool exchange) {
  if (IsSingle(plan)) return trial.Single(prompt);
  return trial.Several(prompt, plan.how, plan.partition, exchange);
}

Result<Partition> Search(RankTrial& trial, const std::vector<int32_t>& prompt, int repeats) {
  const auto measure = [&](const Partition& partition) {
    return trial.ChainSeconds(prompt, partition, repeats);
  };
  ASSIGN_OR_RETURN(const SearchResult found,
                   SearchPartition({.what = "bench runahead",
                                    .tokens = static_cast<int>(prompt.size()),
                                    .ranks = trial.ranks(),
                                    .stride_min_tokens = trial.layout().chunk_tokens},
                                   measure));
  fmt::print("searched with {} measurements\n", found.measurements);
  return found.best.partition;
}

}  // namespace

double MethodResult::ttft() const { return Median(ttft_s); }
double MethodResult::bound() const { return bound_s.empty() ? ttft() : Median(bound_s); }

Partition PlannedPartition(const ChainCost& cost, int tokens, int chunk_tokens) {
  return ChunkedPartition(cost, AnalyticPartition(cost, tokens), chunk_tokens);
}

std::vector<RankMethodPlan> PlansWith(Partition kvr) {
  const int tokens = kvr.tokens(), ranks = kvr.ranks();
  return {{"tsp", RankMethod::kTsp, EvenPartition(tokens, ranks)},
          {"zigzag", RankMethod::kZigzag, EvenPartition(tokens, 2 * ranks)},
          {"kvr-e", RankMethod::kChain, EvenPartition(tokens, ranks)},
          {"kvr", RankMethod::kChain, std::move(kvr)}};
}

Result<std::vector<MethodResult>> MeasureCell(RankTrial& trial, std::vector<RankMethodPlan> plans,
                                              const std::vector<int32_t>& prompt,
                                              const CellOptions& options) {
  if (options.search) {
    ASSIGN_OR_RETURN(Partition found, Search(trial, prompt, options.search_repeats));
    plans.push_back({"kvr-s", RankMethod::kChain, std::move(found)});
  }
  std::vector<MethodResult> results;
  if (options.single) results.push_back({.method = {.name = "single"}});
  for (RankMethodPlan& plan : plans) results.push_back({.method = std::move(plan)});
  std::optional<int32_t> token;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (MethodResult& result : results) {
      ASSIGN_OR_RETURN(const RankRun run, RunOnce(trial, result.method, prompt, true));
      if (run.token != token.value_or(run.token)) {
        return Fail(ErrorCode::kCorrupt, "{} has another first token than {}", result.method.name,
                    results[0].method.name);
      }
      token = run.token;
      result.ttft_s.push_back(run.ttft_s);
      result.sent_bytes = run.sent_bytes;
      if (IsSingle(result.method) || repeat >= options.bound_repeats) continue;
      ASSIGN_OR_RETURN(const RankRun free, RunOnce(trial, result.method, prompt, false));
      result.bound_s.push_back(free.compute_most_s);
    }
  }
  return results;
}

const MethodResult* FindMethod(const std::vector<MethodResult>& results, const std::string& name) {
  const auto it = std::find_if(results.begin(), results.end(),
                               [&](const MethodResult& r) { return r.method.name == name; });
  return it == results.end() ? nullptr : &*it;
}

void PrintCellHeader() {
  fmt::print("{:>7} {:>5} {:>7} {:>8} {:>7} {:>8} {:>7} {:>9} {:>8} {:>9}  {}\n", "tokens", "ranks",
             "method", "ttft s", "spread", "bound s", "above", "x single", "x tsp", "sent MB",
             "tokens of each rank");
}

void PrintCell(const CellNames& names, const std::vector<MethodResult>& results) {
  const auto against = [&](const char* name, double ttft_s) {
    const MethodResult* other = FindMethod(results, name);
    return other == nullptr ? std::string("-") : fmt::format("{:.2f}x", other->ttft() / ttft_s);
  };
  for (const MethodResult& result : results) {
    const auto [least, most] = std::minmax_element(result.ttft_s.begin(), result.ttft_s.end());
    const bool single = IsSingle(result.method);
    const std::string bound = result.bound_s.empty() ? "-" : fmt::format("{:.3f}", result.bound());
    const std::string above =
        result.bound_s.empty() ? "-"
                               : fmt::format("{:.1f}%", 100 * (result.ttft() / result.bound() - 1));
    fmt::print("{:>7} {:>5} {:>7} {:>8.3f} {:>6.2f}x {:>8} {:>7} {:>9} {:>8} {:>9.1f}  {}\n",
               names.tokens, single ? 1 : names.ranks, result.method.name, result.ttft(),
               *most / *least, bound, above, against("single", result.ttft()),
               against("tsp", result.ttft()), result.sent_bytes / 1e6,
               single ? "" : FormatPartition(result.method.partition));
  }
  const MethodResult* single = FindMethod(results, "single");
  if (single == nullptr) return;
  const double p = names.ranks;
  fmt::print("{:>7} {:>5} {:>7} {:>8.3f} s, and of dense quadratic attention alone {:.3f} s\n",
             names.tokens, names.ranks, "ideal", single->ttft() / p,
             single->ttft() * (1 / p + 1 / (p * p)) / 2);  // the paper's TTFT*(p)
}

void AddJson(const CellNames& names, const std::vector<MethodResult>& results,
             nlohmann::ordered_json* list) {
  for (const MethodResult& result : results) {
    nlohmann::ordered_json bound_s = nullptr;  // not measured
    if (IsSingle(result.method) || !result.bound_s.empty()) bound_s = result.bound();
    list->push_back({{"setting", names.setting},
                     {"model", names.model},
                     {"tokens", names.tokens},
                     {"ranks", IsSingle(result.method) ? 1 : names.ranks},
                     {"method", result.method.name},
                     {"attention", names.attention},
                     {"bounds", result.method.partition.bounds},
                     {"ttft_s", result.ttft()},
                     {"bound_s", bound_s},
                     {"sent_bytes", result.sent_bytes},
                     {"repeats", result.ttft_s}});
  }
}

}  // namespace kvcake::bench
