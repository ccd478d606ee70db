// Steps that a restoration shares with requests made up to fill them: how the papers set the share
// of a GPU. Engine thread only.
#pragma once

#include <optional>
#include <vector>

#include "base/clock.h"
#include "cake/compute_share.h"
#include "cake/restorer.h"
#include "model/model.h"

namespace kvcake {

class SharedSteps {
 public:
  // Holds PagesFor pages of the pool, which must have them (CHECKed).
  SharedSteps(SpeedTrace shares, const Model& model, PagePool& pool, int slice_tokens);
  static uint64_t PagesFor(int slice_tokens, int chunk_tokens);

  // What restorations get of a step that begins now; shares count from the first call.
  ComputeBudget Budget(TimePoint now);
  // Others' prefill of so many tokens as far into a prompt as `position`; valid until the next
  // call.
  Slice Fill(int position, int tokens);
  // A step begun then has been run, with so many chunks of restorations.
  void Ran(TimePoint began, int chunks);
  uint64_t pages() const { return pages_.size(); }
  int slice_tokens() const { return slice_tokens_; }

 private:
  double At(TimePoint t) const { return (t - *began_).count(); }

  const Model& model_;
  const int slice_tokens_, chunk_tokens_;
  ComputeShare share_;
  std::optional<TimePoint> began_;
  std::vector<PageHandle> pages_;
  std::vector<PageId> table_;
  std::vector<int32_t> tokens_;
};

}  // namespace kvcake
