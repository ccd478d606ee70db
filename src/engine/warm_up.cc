#include "engine/warm_up.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kv/page_pool.h"

namespace kvcake {
namespace {

constexpr int kLeastTokens = 16;
constexpr int kSamplesMost = 16;  // that warming up makes

class Passes {
 public:
  Passes(Model& model, PagePool& pool, const Clock& clock)
      : model_(model), pool_(pool), clock_(clock) {}

  // Nothing when the pool has too few pages.
  Result<std::optional<Seconds>> Run(int prefix, int count) {
    const int chunk = pool_.layout().chunk_tokens;
    while (static_cast<int>(ids_.size()) * chunk < prefix + count) {
      auto page = pool_.Draw();
      if (!page) return std::nullopt;
      ids_.push_back(page->id());
      pages_.push_back(std::move(*page));
    }
    const std::vector<int32_t> tokens(count, 0);
    const Slice slice{.tokens = tokens, .start = prefix, .pages = ids_};
    const TimePoint began = clock_.Now();
    RETURN_IF_ERROR(model_.Forward(std::span(&slice, 1)).map([](auto) {}));
    return clock_.Now() - began;
  }

 private:
  Model& model_;
  PagePool& pool_;
  const Clock& clock_;
  std::vector<PageHandle> pages_;
  std::vector<PageId> ids_;
};

}  // namespace

Status WarmUp(Model& model, PagePool& pool, ComputeCost& cost, const Clock& clock,
              const WarmUpOptions& options) {
  const bool measured = cost.fit().known();
  Passes passes(model, pool, clock);
  const TimePoint began = clock.Now();
  // The first pays for page faults and cold caches; the second of its length tells that.
  bool again = true;
  for (int count = kLeastTokens; count <= options.slice_tokens;) {
    ASSIGN_OR_RETURN(const std::optional<Seconds> took, passes.Run(0, count));
    if (!took) break;
    if (!measured) cost.Add(0, count, *took);
    if (measured || clock.Now() - began > options.max) break;
    if (!std::exchange(again, false)) count *= 2;
  }
  return {};
}

Status WarmUpFar(Model& model, PagePool& pool, ComputeCost& cost, const Clock& clock) {
  constexpr Seconds kMax{1};
  constexpr int kFar = 4096;  // attention takes a fair share there
  constexpr int kShort = kLeastTokens, kLong = 4 * kLeastTokens;
  const int chunk = pool.layout().chunk_tokens;
  const int most = std::min(kFar, model.max_positions() - kLong);
  const int far = std::max(0, most) / chunk * chunk;
  if (cost.fit().samples > kSamplesMost || far == 0) return {};
  Passes passes(model, pool, clock);
  const TimePoint began = clock.Now();
  ASSIGN_OR_RETURN(std::optional<Seconds> took, passes.Run(far, kShort));
  if (!took) return {};
  const Seconds cold = *took;
  int before = kShort;
  bool learnt = false;
  // Near and far alike, and far of two lengths, to tell what grows with the prefix alone.
  for (const auto& [prefix, count] :
       {std::pair(0, kLong), std::pair(far, kLong), std::pair(far, kShort)}) {
    const Seconds expected = *took * count / before;
    if (clock.Now() - began + expected > kMax) break;
    ASSIGN_OR_RETURN(took, passes.Run(prefix, count));
    cost.Add(prefix, count, *took);
    before = count;
    learnt = true;
  }
  if (!learnt) cost.Add(far, kShort, cold);
  return {};
}

}  // namespace kvcake
