// What one prompt knows of chunks that are claimed between processes, and what waiting for those of
// others has cost it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace kvcake {

struct ClaimOptions;

// What is known of a chunk, as the tier said last:
//
//   unasked ---> mine     this process computes it; others wait
//     |  ^-----> theirs   another computes it: it is asked again, until it came or is free
//     |--------> came     another has stored it since the restoration began
//     \--------> free     no claim of it can be made
enum class PeerState : uint8_t { kUnasked, kMine, kTheirs, kCame, kFree };

// Unsynchronised: part of a board.
class PeerClaims {
 public:
  explicit PeerClaims(int chunks) : states_(chunks) {}

  // Whether the prompt takes part. Decided once, when it is known what computing costs.
  bool decided() const { return decided_; }
  bool active() const { return active_; }
  void Decide(bool active) {
    decided_ = true;
    active_ = active;
  }

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

  // Whether to wait, or to wait on, for a chunk of another process. A slice takes slice_s, and
  // turn_s until it has come where several prompts take turns.
  bool MayWait(const ClaimOptions& options, TimePoint now, double slice_s, double turn_s);
  bool has_waited() const { return has_waited_; }
  // A slice of its own begins, and takes so long.
  void Computes(double seconds);
  // All up to this chunk are resident; computing one takes chunk_s. What others made of them has
  // paid waiting back.
  void ReachedFront(int front, double chunk_s);

 private:
  std::vector<PeerState> states_;
  bool decided_ = false;
  bool active_ = false;
  bool asking_ = false;
  bool has_waited_ = false;
  TimePoint asked_{};
  std::optional<TimePoint> waiting_;  // counted up to here
  int front_ = 0;
  double lost_s_ = 0;
  double computed_s_ = 0;
  std::optional<double> gave_up_at_s_;  // of computed_s_, the first time
  bool forgave_ = false;
};

}  // namespace kvcake
