#include "engine/chain_json.h"

namespace kvcake {

nlohmann::ordered_json ChainJson(const std::optional<ChainReport>& chain) {
  if (!chain) return nullptr;
  auto ranks = nlohmann::ordered_json::array();
  for (const RankReport& rank : chain->ranks) {
    ranks.push_back({{"compute_s", rank.compute_s},
                     {"wait_s", rank.wait_s},
                     {"sent_bytes", rank.sent_bytes},
                     {"peak_rss_bytes", rank.peak_rss_bytes}});
  }
  return {{"origin", chain->job.origin},
          {"bounds", chain->job.partition.bounds},
          {"ranks", std::move(ranks)}};
}

}  // namespace kvcake
