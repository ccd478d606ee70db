// How much of each step a restoration may compute when others want the machine too.
#pragma once

#include <optional>

#include "sim/speed_trace.h"

namespace kvcake {

// A restoration gets share x slice_tokens of each step, in whole chunks: what is short of a chunk
// is kept for the next step, up to a chunk. Unsynchronised.
class ComputeShare {
 public:
  // shares from 0 to 1, by the time since the first step.
  ComputeShare(SpeedTrace shares, int slice_tokens, int chunk_tokens);

  // Chunks that a step begun now may compute; 0 is legal.
  int Budget(double now_s);
  // A step begun then has been run, with so many of its chunks used.
  void Step(double begun_s, int chunks);
  // What to count on as of the last Budget: the mean of the last steps' shares, those in which
  // nobody took part included.
  double typical() const { return typical_; }

 private:
  double Share(double s) const;
  double Tokens(double now_s) const;
  void Watch(double now_s);

  const SpeedTrace shares_;
  const int slice_tokens_, chunk_tokens_;
  double kept_tokens_ = 0;
  double typical_;
  std::optional<double> seen_s_;  // the beginning of the last step; none yet
  double step_s_ = 0;             // how long the last one was; 0: until Budget is asked for again
};

}  // namespace kvcake
