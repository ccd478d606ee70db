// What one prompt knows of chunks that are claimed between processes, and how long it waits for
// those of others.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace kvcake {

struct ClaimOptions;

// Of each chunk, as the tier said last:
//
//   unasked --Begin/Answered--> mine     this process computes it; others wait
//           |                   theirs   another computes it: ask again, until it is stored or free
//           |                   free     nobody has claimed it, or it is stored, or nobody can
//           \<----Answered---- (behind one that is theirs: not asked about yet)
enum class PeerState : uint8_t { kUnasked, kMine, kTheirs, kFree };

// Unsynchronised: part of a board.
class PeerClaims {
 public:
  explicit PeerClaims(int chunks) : states_(chunks) {}

  // Whether the prompt takes part. Decided once, by the first plan that knows what things cost:
  // alone it would be done finish_s from now, and a slice takes slice_s.
  bool decided() const { return decided_; }
  void Decide(const ClaimOptions& options, TimePoint now, double finish_s, double slice_s);
  bool active() const { return active_; }
  void Leave() { active_ = false; }

  PeerState state(int chunk) const { return states_[chunk]; }
  void Set(int chunk, PeerState state) { states_[chunk] = state; }

  // One question at a time is under way.
  bool asking() const { return asking_; }
  void BeginAsk(TimePoint now) {
    asking_ = true;
    asked_ = now;
  }
  void EndAsk() { asking_ = false; }
  TimePoint asked() const { return asked_; }

  // Whether to wait on for a chunk of another process: computing from here on ends finish_s from
  // now, a slice takes slice_s, and something came last at `progressed`.
  bool MayWait(const ClaimOptions& options, TimePoint now, double finish_s, double slice_s,
               TimePoint progressed);
  // It has waited for others at all.
  bool has_waited() const { return has_waited_; }
  bool gave_up() const { return gave_up_; }

 private:
  std::vector<PeerState> states_;
  bool decided_ = false;
  bool active_ = false;
  bool asking_ = false;
  bool has_waited_ = false;
  bool gave_up_ = false;
  TimePoint asked_{};
  TimePoint waiting_since_{};
  TimePoint done_alone_{};  // by the first plan
  Seconds late_max_{0};
};

}  // namespace kvcake
