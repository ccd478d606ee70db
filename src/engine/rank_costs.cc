#include "engine/rank_costs.h"

namespace kvcake {

SliceTime SliceTimeOf(Runtime& runtime) {
  if (runtime.emulated()) return runtime.profile()->time();
  return runtime.compute_cost().fit().time();
}

ChainCost ChainCostOf(Runtime& runtime, int ranks, const LinkCost& link) {
  const KvLayout& layout = runtime.pool().layout();
  return {.ranks = std::vector<RankCost>(ranks, {.time = SliceTimeOf(runtime)}),
          .link = link,
          .layers = layout.layers,
          .bytes_per_token_layer = static_cast<double>(layout.bytes_per_token()) / layout.layers};
}

ChainPlannerOptions PlannerOptionsOf(Runtime& runtime, const LinkCost& link) {
  const ChainCost cost = ChainCostOf(runtime, 1, link);
  return {.chunk_tokens = runtime.pool().layout().chunk_tokens,
          .layers = cost.layers,
          .bytes_per_token_layer = cost.bytes_per_token_layer,
          .link = link,
          .time = [&runtime] { return SliceTimeOf(runtime); }};
}

}  // namespace kvcake
