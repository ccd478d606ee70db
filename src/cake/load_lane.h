// One tier's load lane: the reads that it has been asked for, how fast they come, and whether it
// still answers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "cake/board.h"
#include "cake/cost_model.h"
#include "cake/planner.h"
#include "cake/restore_context.h"
#include "store/tier.h"

namespace kvcake {

// A read in flight. Its page is the tier's until the tier calls back, whoever owns the chunk now.
struct LaneRead {
  Board* owner = nullptr;  // null: nobody; the result is late
  Claim claim;
  ChunkKey key;
  PageHandle page;
  TimePoint start{};
  double eta_s = 0;          // from now, as of the last UpdateEtas
  std::optional<ReadId> id;  // the tier's; known once Get has returned
  bool cancelled = false;    // nothing is expected of it any more
  bool told = false;         // the log has it that it does not come back
};

// Unsynchronised: its Restorer's mutex guards it. Calls no tier.
class LoadLane {
 public:
  // Both are borrowed; the tier is asked for its name and limits only here.
  LoadLane(const RestoreContext& context, const Tier& tier);
  LoadLane(LoadLane&&) = default;

  std::string_view name() const { return name_; }
  TierCost& cost() { return cost_; }
  const TierCost& cost() const { return cost_; }
  const TierEstimate& estimate() const { return cost_.estimate(); }
  // Between the completions of two queued chunks; 0 while nothing is known.
  double interval_s() const { return estimate().IntervalFor(context_.chunk_bytes()); }

  // It answers, and takes reads of a chunk at all.
  bool Usable() const;
  // One more read may be queued.
  bool HasRoom() const;

  // ---- reads, by their number over all lanes: in order of issue
  std::map<uint64_t, LaneRead>& reads() { return reads_; }
  const std::map<uint64_t, LaneRead>& reads() const { return reads_; }
  void Start(uint64_t number, LaneRead read);
  // The tier's Get has returned. True when the read was cancelled meanwhile, so that the tier is to
  // be told; it may have ended, too.
  bool Issued(uint64_t number, ReadId id);
  // Nobody waits for it any more. The id to tell the tier of, if it is known and was not told yet.
  std::optional<ReadId> Cancel(uint64_t number);
  // The tier has called back: the read leaves the lane.
  LaneRead End(uint64_t number, const ReadResult& result);

  // Chunks that have come, since the beginning.
  uint64_t delivered() const { return delivered_; }

  // ---- stalls: a tier from which nothing comes is given up until something does
  bool stalled() const { return stalled_until_.has_value(); }
  // Gives up a tier that is silent for too long, or asks it again after a while. True: it has been
  // given up now, and its reads are to be cancelled.
  bool CheckStall();

  // ---- looks: questions what it holds
  void BeginLook();
  void NoteAnswer();  // of a look under way
  void EndLook();

  // ---- for the planner
  // When the reads in flight should complete: in order of issue, at the tier's rate.
  void UpdateEtas();
  // For this lane alone, whatever other prompts want of it.
  TierView View() const;
  // Nothing that anybody wants is in flight, and nothing was measured for so long that one read is
  // worth trying: sooner while cancelled reads are out, of which one more may show that they are
  // lost.
  bool WantsProbe() const;

 private:
  TimePoint Now() const { return context_.clock.Now(); }
  // Cancelled, and what was asked for later has come: the tier is none the slower for it, and it
  // may never end.
  bool IsLost(uint64_t number, const LaneRead& read) const {
    return read.cancelled && number < newest_delivered_;
  }
  // Those that still have a part of the link, or may have: all but the lost.
  size_t reads_due() const;
  void TellOfLost();
  void GiveUp(TimePoint silent_since);
  void Answered();

  // Constant after construction.
  const RestoreContext& context_;
  const std::string_view name_;
  const uint64_t reads_max_;  // of a chunk, by both limits of the tier

  TierCost cost_;
  std::map<uint64_t, LaneRead> reads_;
  uint64_t delivered_ = 0;
  uint64_t newest_delivered_ = 0;           // the largest number of those
  std::optional<TimePoint> stalled_until_;  // given up: then it is asked again
  bool logged_ = false;                     // that it was, since it has answered
  TimePoint quiet_until_{};                 // one that flickers is logged once a minute
  int looks_ = 0;                           // under way
  int lost_looks_ = 0;                      // of them, those of which nothing is expected any more
  TimePoint look_progress_{};  // the last answer, or the start of the first of the others since
  double drain_s_ = 0;         // until one more read could begin to be delivered
};

}  // namespace kvcake
