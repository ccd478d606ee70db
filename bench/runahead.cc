#include "bench/runahead.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "bench/harness.h"
#include "bench/rank_trial.h"
#include "runahead/partition_analytic.h"
#include "runahead/partition_search.h"

namespace kvcake::bench {
namespace {

struct Method {
  std::string name;
  RankMethod how = RankMethod::kChain;
  Partition partition = {};
};

class RunaheadBench {
 public:
  RunaheadBench(const RunaheadOptions& options, Runtime& runtime, Comm& comm)
      : options_(options), runtime_(runtime), comm_(comm), trial_(runtime, comm) {}

  Status Run() {
    fmt::print("{}; {} ranks of {} threads; {} repeats, medians\n", CpuName(), comm_.size(),
               runtime_.threads().size(), options_.repeats);
    fmt::print("{:>7} {:>7} {:>8} {:>7} {:>8} {:>7} {:>9} {:>8} {:>9} {:>9}  {}\n", "tokens",
               "method", "ttft s", "spread", "bound s", "above", "x single", "x tsp", "sent MB",
               "peak MB", "tokens of each rank");
    for (const int tokens : options_.contexts) RETURN_IF_ERROR(Measure(tokens));
    return options_.json.empty() ? Status() : WriteJson(options_.json, json_);
  }

 private:
  Status Measure(int tokens) {
    prompt_ = RandomPrompt(tokens, runtime_.model().vocab_size(), tokens);
    ASSIGN_OR_RETURN(const RankRun warm,
                     trial_.Single(prompt_));  // and the costs of the analytic partition
    ASSIGN_OR_RETURN(const std::vector<Method> methods, Methods(tokens));
    std::vector<std::vector<RankRun>> runs(methods.size() + 1);
    std::vector<std::vector<double>> bounds(methods.size());
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      ASSIGN_OR_RETURN(const RankRun single, trial_.Single(prompt_));
      runs[0].push_back(single);
      for (size_t m = 0; m < methods.size(); ++m) {
        ASSIGN_OR_RETURN(const RankRun run, Several(methods[m]));
        if (run.token != warm.token) {
          return Fail(ErrorCode::kCorrupt, "{} has another first token than one process",
                      methods[m].name);
        }
        runs[m + 1].push_back(run);
        ASSIGN_OR_RETURN(const RankRun free, Several(methods[m], /*exchange=*/false));
        bounds[m].push_back(free.compute_most_s);
      }
    }
    const double single_s = Ttft(runs[0]), tsp_s = Ttft(runs[1]);
    Report(tokens, {.name = "single"}, runs[0], single_s, single_s, tsp_s);
    for (size_t m = 0; m < methods.size(); ++m) {
      Report(tokens, methods[m], runs[m + 1], Median(bounds[m]), single_s, tsp_s);
    }
    return {};
  }

  static double Ttft(const std::vector<RankRun>& runs) {
    std::vector<double> seconds;
    for (const auto& run : runs) seconds.push_back(run.ttft_s);
    return Median(std::move(seconds));
  }

  Result<std::vector<Method>> Methods(int tokens) {
    const int ranks = comm_.size(), chunk = runtime_.pool().layout().chunk_tokens;
    std::vector<Method> methods = {
        {"tsp", RankMethod::kTsp, EvenPartition(tokens, ranks)},
        {"zigzag", RankMethod::kZigzag, EvenPartition(tokens, 2 * ranks)},
        {"kvr-e", RankMethod::kChain, EvenPartition(tokens, ranks)}};
    const ComputeFit fit = runtime_.compute_cost().fit();
    ChainCost cost;
    cost.ranks.assign(ranks, {.time = {.c0 = fit.c0, .g = fit.g, .b = fit.b, .a = fit.a}});
    cost.layers = runtime_.pool().layout().layers;
    cost.bytes_per_token_layer =
        static_cast<double>(runtime_.pool().layout().bytes_per_token()) / cost.layers;
    methods.push_back({"kvr", RankMethod::kChain,
                       ChunkedPartition(cost, AnalyticPartition(cost, tokens), chunk)});
    if (!options_.search) return methods;
    Method tried{.name = "kvr-s"};
    const auto measure = [&](const Partition& partition) -> Result<double> {
      tried.partition = partition;
      std::vector<RankRun> runs;
      for (int i = 0; i < options_.repeats; ++i) {
        ASSIGN_OR_RETURN(runs.emplace_back(), Several(tried));
      }
      return Ttft(runs);
    };
    ASSIGN_OR_RETURN(const SearchResult found, SearchPartition({.what = "bench runahead",
                                                                .tokens = tokens,
                                                                .ranks = ranks,
                                                                .stride_min_tokens = chunk},
                                                               measure));
    methods.push_back({"kvr-s", RankMethod::kChain, found.best.partition});
    return methods;
  }

  Result<RankRun> Several(const Method& method, bool exchange = true) {
    return trial_.Several(prompt_, method.how, method.partition, exchange);
  }

  void Report(int tokens, const Method& method, const std::vector<RankRun>& runs, double bound_s,
              double single_s, double tsp_s) {
    const double ttft_s = Ttft(runs);
    std::vector<double> seconds;
    for (const auto& run : runs) seconds.push_back(run.ttft_s);
    const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
    const std::string parts =
        method.partition.bounds.empty() ? "" : FormatPartition(method.partition);
    fmt::print(
        "{:>7} {:>7} {:>8.3f} {:>6.2f}x {:>8.3f} {:>6.1f}% {:>8.2f}x {:>7.2f}x {:>9.1f} {:>9.0f}  "
        "{}\n",
        tokens, method.name, ttft_s, *most / *least, bound_s, 100 * (ttft_s / bound_s - 1),
        single_s / ttft_s, tsp_s / ttft_s, runs[0].sent_bytes / 1e6, runs[0].peak_rss_bytes / 1e6,
        parts);
    json_.push_back({{"setting", "real"},
                     {"model", runtime_.options().model_dir},
                     {"tokens", tokens},
                     {"ranks", method.name == "single" ? 1 : comm_.size()},
                     {"method", method.name},
                     {"attention", "causal"},
                     {"bounds", method.partition.bounds},
                     {"ttft_s", ttft_s},
                     {"bound_s", bound_s},
                     {"sent_bytes", runs[0].sent_bytes},
                     {"peak_rss_bytes", runs[0].peak_rss_bytes},
                     {"repeats", seconds}});
  }

  const RunaheadOptions& options_;
  Runtime& runtime_;
  Comm& comm_;
  RankTrial trial_;
  std::vector<int32_t> prompt_;
  nlohmann::ordered_json json_ = nlohmann::ordered_json::array();
};

}  // namespace

Status RunRunahead(const RunaheadOptions& options, Runtime& runtime, Comm& comm) {
  return RunaheadBench(options, runtime, comm).Run();
}

}  // namespace kvcake::bench
