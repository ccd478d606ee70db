#include "cake/load_queue.h"

#include <algorithm>

namespace kvcake {

LoadQueue::LoadQueue(const Claims& claims, const Plan& plan, int tiers) : chunks_(tiers) {
  for (int tier = 0; tier < tiers; ++tier) {
    std::vector<int>& chunks = chunks_[tier];
    size_t begin = 0;  // of what lies before the next chunk that compute has to make
    for (int i = claims.first_missing(); i < claims.size(); ++i) {
      if (claims.state(i) != ChunkState::kAbsent) continue;
      if (plan.sides[i] == Side::kCompute || claims.IsHole(i)) {
        std::reverse(chunks.begin() + begin, chunks.end());
        begin = chunks.size();
      } else if (claims.Wants(i, tier) && (plan.tiers[i] < 0 || plan.tiers[i] == tier)) {
        chunks.push_back(i);
      }
    }
    std::reverse(chunks.begin() + begin, chunks.end());
    std::reverse(chunks.begin(), chunks.end());
  }
}

std::optional<int> LoadQueue::Next(const Claims& claims, int tier) {
  std::vector<int>& chunks = chunks_[tier];
  while (!chunks.empty() && !claims.Wants(chunks.back(), tier)) chunks.pop_back();
  if (chunks.empty()) return std::nullopt;
  return chunks.back();
}

}  // namespace kvcake
