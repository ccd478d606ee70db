#include "bench/runahead.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "bench/harness.h"
#include "bench/runahead_cell.h"
#include "bench/runahead_svg.h"
#include "engine/rank_costs.h"

namespace kvcake::bench {
Status RunRunahead(const RunaheadOptions& options, Runtime& runtime, Comm& comm) {
  RankTrial trial(runtime.model(), runtime.pool(), comm,
                  {.dense = options.dense, .on_slice = [&](int start, int tokens, Seconds took) {
                     if (!options.dense) runtime.compute_cost().Add(start, tokens, took);
                   }});
  fmt::print("{}; {} ranks of {} threads; attention {}; {} repeats, medians\n", CpuName(),
             comm.size(), runtime.threads().size(), options.dense ? "dense" : "causal",
             options.repeats);
  PrintCellHeader();
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  RunaheadPicture picture;
  for (const int tokens : options.contexts) {
    const auto prompt = RandomPrompt(tokens, trial.vocab_size(), tokens);
    RETURN_IF_ERROR(trial.Single(prompt).map([](auto) {}));  // the costs that `kvr` divides by
    ChainCost cost = ChainCostOf(runtime, comm.size(), {});
    if (options.dense) {  // of the same work: a rectangle has twice the scores of its triangle
      for (RankCost& rank : cost.ranks) {
        rank.time.attention = SliceTime::Attention::kDense;
        rank.time.a *= 2;
        rank.time.g = 0;
      }
    }
    ASSIGN_OR_RETURN(const auto results,
                     MeasureCell(trial, PlansFor(cost, tokens, trial.layout().chunk_tokens), prompt,
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
  if (!options.svg.empty()) RETURN_IF_ERROR(WriteFile(options.svg, picture.Draw()));
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
