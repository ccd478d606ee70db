// Decides which chunk each lane reads next, and what becomes of what comes back.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cake/board.h"
#include "cake/in_flight_table.h"
#include "cake/load_lane.h"
#include "cake/restore_planner.h"
#include "cake/tier_calls.h"

namespace kvcake {

// What one Restorer works on, by part. Unsynchronised: its mutex guards all of them.
struct RestoreParts {
  std::vector<LoadLane>& lanes;
  InFlightTable& table;
  RestorePlanner& planner;
  TierCalls& calls;  // to be made when the mutex is released
};

// Unsynchronised: its Restorer's mutex guards it and the parts, which it borrows.
class LoadScheduler {
 public:
  LoadScheduler(const RestoreContext& context, const RestoreParts& parts)
      : context_(context), parts_(parts) {}

  // Starts reads while lanes have room and prompts have chunks worth loading.
  void Pump();
  // The last Pump could have read more with more free pages.
  bool lacks_pages() const { return lacks_pages_; }
  // Gives up tiers that are silent for too long, and their reads. True where one was.
  bool CheckStalls();
  // A tier has called back: publishes the chunk, or gives it back to the board.
  void EndRead(int tier, uint64_t number, ReadResult result);
  // Compute has claimed a chunk that a load owned: the load's result will be late.
  void TakeOver(Board& taker, int chunk);
  // Compute has claimed a chunk for the board alone: a load that the board owned goes on for others
  // that want it, or is cancelled.
  void Yield(Board& board, int chunk);
  // A prompt ends: its reads go on for others that want their chunks, or are cancelled.
  void GiveAway(Board& board);

 private:
  bool PumpOne(int tier);
  std::optional<int> NextChunk(Board& board, int tier);
  std::optional<int> Probe(const Board& board, int tier) const;
  bool TakeFromSlower(int tier);
  bool StartRead(Board& board, int tier, int chunk);
  void Cancel(int tier, uint64_t number);
  void NoteFailure(Board& board, int tier);
  void Fail(int tier, LaneRead& read, std::string_view why);

  // Constant after construction.
  const RestoreContext& context_;
  const RestoreParts parts_;

  uint64_t next_read_ = 1;
  bool lacks_pages_ = false;
  uint32_t failing_ = 0;  // bit t: a read of tier t failed since the last that did not
};

}  // namespace kvcake
