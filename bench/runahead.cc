#include "bench/runahead.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "bench/harness.h"
#include "bench/runahead_cell.h"
#include "bench/runahead_svg.h"
#include "engine/rank_costs.h"
#include "runahead/chain_planner.h"

namespace kvcake::bench {
namespace {

// Counts attention as dense where that is measured: a rectangle has twice the scores of its
// triangle.
SliceTime TimeOf(Runtime& runtime, bool dense) {
  SliceTime time = SliceTimeOf(runtime);
  if (dense) time.attention = SliceTime::Attention::kDense, time.a *= 2, time.g = 0;
  return time;
}

// As a server divides the prompt once it has seen some like it. Empty where fewer ranks do.
Result<std::optional<Partition>> Planned(RankTrial& trial, ChainPlanner& planner,
                                         const std::vector<int32_t>& prompt) {
  constexpr int kPromptsBefore = 2;
  const int tokens = static_cast<int>(prompt.size());
  for (int before = 0;; ++before) {
    std::optional<Partition> partition = planner.Plan(0, tokens, trial.ranks());
    if (!partition || partition->ranks() != trial.ranks()) return std::nullopt;
    if (before == kPromptsBefore) return partition;
    ASSIGN_OR_RETURN(const RankRun run, trial.Several(prompt, RankMethod::kChain, *partition));
    planner.Learn({.tokens = prompt, .partition = *partition}, run.ranks);
  }
}

}  // namespace

Status RunRunahead(const RunaheadOptions& options, Runtime& runtime, Comm& comm,
                   const LinkCost& link) {
  RankTrial trial(runtime.model(), runtime.pool(), comm,
                  {.chain = {.staging = runtime.rank_staging()},
                   .dense = options.dense,
                   .on_slice = [&](int start, int tokens, Seconds took) {
                     if (!options.dense) runtime.compute_cost().Add(start, tokens, took);
                   }});
  ChainPlannerOptions planning = PlannerOptionsOf(runtime, link);
  planning.time = [&] { return TimeOf(runtime, options.dense); };
  ASSIGN_OR_RETURN(const auto planner, NewChainPlanner(std::move(planning)));
  fmt::print("{}; {} ranks of {} threads; attention {}; {} repeats, medians\n",
             DeviceName(runtime.model().numeric_path()), comm.size(), runtime.threads().size(),
             options.dense ? "dense" : "causal", options.repeats);
  PrintCellHeader();
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  RunaheadPicture picture;
  for (const int tokens : options.contexts) {
    const auto prompt = RandomPrompt(tokens, trial.vocab_size(), tokens);
    RETURN_IF_ERROR(trial.Single(prompt).map([](auto) {}));  // the costs that `kvr` divides by
    ASSIGN_OR_RETURN(auto partition, Planned(trial, *planner, prompt));
    if (!partition) {
      fmt::print("{:>7} tokens: fewer than {} ranks do as well\n", tokens, trial.ranks());
      continue;
    }
    ASSIGN_OR_RETURN(const auto results,
                     MeasureCell(trial, PlansWith(*std::move(partition)), prompt,
                                 {.repeats = options.repeats,
                                  .bound_repeats = options.repeats,
                                  .search = options.search}));
    const CellNames names{.setting = "real",
                          .model = runtime.options().model_dir,
                          .attention = options.dense ? "dense" : "causal",
                          .tokens = tokens,
                          .ranks = comm.size()};
    PrintCell(names, results);
    AddJson(names, results, &json);
    picture.Add(names, results);
  }
  if (json.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                "no prompt is worth {} ranks: try a longer --context, or fewer --ranks",
                trial.ranks());
  }
  if (!options.svg.empty()) RETURN_IF_ERROR(WriteFile(options.svg, picture.Draw()));
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
