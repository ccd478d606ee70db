// Whether this process is to compute a slice, as other processes may be computing it: claims it
// first, and waits for what others have claimed as long as that is no slower.
#pragma once

#include <vector>

#include "cake/board.h"
#include "cake/load_scheduler.h"
#include "store/tier.h"

namespace kvcake {

struct PeerTurn {
  int chunks = 0;  // of the slice, that may be computed now; 0: none yet
  TimePoint wait_until{};
  const char* reason = "";  // for waiting
};

// Unsynchronised: its Restorer's mutex guards it and the parts, which it borrows.
class PeerLane {
 public:
  PeerLane(const RestoreContext& context, const RestoreParts& parts)
      : context_(context), options_(context.options.claims), parts_(parts) {}

  // How much of the slice that the board's plan wants may begin.
  PeerTurn NextTurn(Board& board);
  // The board computes a slice: what follows it is claimed meanwhile.
  void Began(Board& board, const Claim& slice);
  // The tier's answer, or that it makes no claims where `states` is empty.
  void Answered(Board& board, const ClaimCall& call, const std::vector<ClaimState>& states);
  // The prompt ends: others may have what it has claimed and not computed.
  void Ended(const Board& board);
  // The answer comes to a prompt that has ended.
  void EndedBefore(const ClaimCall& call, const std::vector<ClaimState>& states);

 private:
  bool TakesPart(Board& board);
  // Reading is quicker than computing, as far as is known.
  bool IsWorthWaiting(const Board& board) const;
  int ChunksToCompute(const Board& board) const;
  void Ask(Board& board, int first, int end);
  // Asks for a slice from there on, where there is anything to be asked.
  void AskAhead(Board& board, int first);
  void TakeMine(Board& board, int chunk);
  void GiveBackMine(Board& board);
  // Ends a claim, unless another prompt of this process computes the chunk.
  void GiveBack(const Board* whose, int chunk, const ChunkKey& key);
  double SliceSeconds(const Board& board) const;
  // The same where each prompt that is not resident has its turn. Another process is taken to have
  // as many prompts as this one, as balancers have it.
  double TurnSeconds(double slice_s) const;

  // Constant after construction.
  const RestoreContext& context_;
  const ClaimOptions& options_;
  const RestoreParts parts_;
};

}  // namespace kvcake
