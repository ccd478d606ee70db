// Asks the planner for one prompt among all that are being restored: they share the links and the
// compute, and requests on one document share their loads.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cake/board.h"
#include "cake/in_flight_table.h"
#include "cake/load_lane.h"
#include "cake/planner.h"

namespace kvcake {

// Unsynchronised: its Restorer's mutex guards it and what it looks at.
class RestorePlanner {
 public:
  // All are borrowed.
  RestorePlanner(const RestoreContext& context, std::vector<LoadLane>& lanes, InFlightTable& table)
      : context_(context), lanes_(lanes), table_(table) {}

  // The best split as things are now, for a next slice of at most so many chunks. The board keeps
  // it.
  const Plan& MakePlanFor(Board& board, int budget_chunks);
  // The board's last plan need not be made again yet: what it rests on is as it was, and it is no
  // older than HoldTime().
  bool Holds(const Board& board) const;
  // Options::plan_interval for each chunk of all prompts.
  Seconds HoldTime() const;
  // The best split of what there was to do, by the costs as they are known now: the bound of its
  // time to first token. tail: what the prompt's last part took, or nothing to have it estimated.
  double Bound(const Board& board, std::optional<Seconds> tail) const;

  // Bit t: the board may ask tier t.
  uint32_t UsableTiers(const Board& board) const;
  // Tiers that have not said what they hold are worth waiting for.
  bool AwaitsLooks(const Board& board) const;
  // How long to wait for them.
  Seconds LookWait(const Board& board) const;
  ComputeNeed Need(const Board& board) const;

  // Ranks all boards by Options::load_order, and counts the documents, where that was not done
  // since another prompt came or went, nor within HoldTime().
  void UpdateRanks();
  // Ranks one anew: it has been opened, or a read was begun for it.
  void UpdateRank(Board& board);

 private:
  const PlanInput& View(const Board& board, const PlanBasis& basis, int budget_chunks);
  void ViewChunks(const Board& board, uint32_t usable);
  TierView ViewTier(const Board& board, int tier) const;
  PlanBasis Basis(const Board& board) const;
  // The engine has compute for this document; else all of it is to be loaded.
  bool IsComputed(const Board& board) const;
  double LoadSeconds() const;  // of a chunk, from the quickest tier
  double Rank(const Board& board, double chunk_s) const;
  int Documents() const;

  // Constant after construction.
  const RestoreContext& context_;
  std::vector<LoadLane>& lanes_;
  InFlightTable& table_;

  // As of the last UpdateRanks.
  size_t ranked_ = 0;  // boards
  TimePoint ranked_at_{};
  int documents_ = 1;  // being restored, where all of them load at once

  PlanInput input_;  // scratch
};

}  // namespace kvcake
