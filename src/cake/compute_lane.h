// The compute lane of all prompts: whether a slice is worth computing now, and what it yields.
#pragma once

#include "cake/board.h"
#include "cake/load_scheduler.h"
#include "cake/peer_lane.h"

namespace kvcake {

// Unsynchronised: its Restorer's mutex guards it and the parts, which it borrows.
class ComputeLane {
 public:
  ComputeLane(const RestoreContext& context, const RestoreParts& parts, LoadScheduler& loads,
              PeerLane& peers)
      : context_(context), parts_(parts), loads_(loads), peers_(peers) {}

  // Restoration::NextTurn, for a prompt that lacks chunks.
  ComputeTurn NextTurn(Board& board, const ComputeBudget& budget);
  // The same for private slices: a slice of up to so many chunks, whatever is planned.
  ComputeTurn ClaimFront(Board& board, int chunks);
  // So many chunks of the board's running slice have been computed: everybody who wants them has
  // them, unless slices are private. The rest is given back.
  void Computed(Board& board, int chunks);
  // All of the board's chunks are resident: learns what the lanes cost each other.
  void Restored(const Board& board);

 private:
  bool TurnHolds(const Board& board, const ComputeBudget& budget) const;
  uint64_t Delivered() const;  // by all lanes
  ComputeTurn StartSlice(Board& board, const Plan& plan, int chunks);
  ComputeTurn BeginSlice(Board& board, PageTable pages);

  // Constant after construction.
  const RestoreContext& context_;
  const RestoreParts parts_;
  LoadScheduler& loads_;
  PeerLane& peers_;
};

}  // namespace kvcake
