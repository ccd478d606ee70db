// What the compute lane should do next and which chunks are worth loading: a pure function of a
// snapshot, O(chunks). Time here is in seconds from now.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cake/cost_model.h"

namespace kvcake {

struct ChunkView {
  enum class State : uint8_t {
    kAbsent,
    kInFlight,   // a load owns it, here or elsewhere; compute may take it over
    kComputing,  // another restoration computes it
    kResident,   // or will be when the slice now running ends
  };
  State state = State::kAbsent;
  uint32_t tiers = 0;  // bit t: tier t can load it
  double eta_s = 0;    // kInFlight: when the load should be complete

  bool IsHole() const { return state == State::kAbsent && tiers == 0; }
  // Compute may make it, though a load may be about to.
  bool IsMissing() const { return state == State::kAbsent || state == State::kInFlight; }
};

struct TierView {
  bool known = false;     // its speed
  double interval_s = 0;  // between the completions of queued chunks
  double beside_s = 0;    // by which all ends later for each of them that comes beside a slice
  double drain_s = 0;     // until the link could begin to deliver one more chunk
  double waited_s = 0;    // !known: how long the first read has been under way
};

struct PlanInput {
  std::vector<ChunkView> chunks;
  std::vector<TierView> tiers;
  ComputeFit compute;
  int chunk_tokens = 128;
  int slice_chunks_max = 4;
  int budget_chunks = 4;           // for the next slice
  double compute_busy_s = 0;       // until a slice that runs now ends
  double last_token_s = 0;         // computing the prompt's last token, unless with the last chunk
  bool waiting = false;            // the last turn was a wait
  bool predict = true;             // false: Cake as published
  std::optional<int> fixed_split;  // compute exactly [0, split) and what no tier can load
};

struct PlannerOptions {
  // Compute must promise this much over waiting; more once we wait, so that noise does not flip it.
  double compute_gain_min = 0.002;
  double compute_gain_min_waiting = 0.01;
  // And in seconds: waking threads, planning, and what short slices vary by come to that.
  double compute_gain_min_s = 5e-4;
  // A load in flight is given up when compute gains this share of a chunk's compute time.
  double take_over_margin_chunks = 0.1;
  // How long to wait for a tier's first measurement, in units of one chunk's compute time.
  double blind_wait_chunks = 0.2;
  // The same while nothing is known of compute either.
  double blind_wait_s = 2e-3;
};

enum class Side : uint8_t { kCompute, kLoad, kEither };

struct Plan {
  // Chunks to compute now, from the first missing one; 0: wait.
  int slice_chunks = 0;
  // Wait: plan again after this long even if nothing happens.
  double wait_s = 0;
  // Per chunk: which lane is to make it resident. Nothing is said about resident ones.
  std::vector<Side> sides;
  // Per chunk: the tier it is to be loaded from; -1: any that has it.
  std::vector<int8_t> tiers;
  // When everything is resident, as far as is known; 0 when costs are unknown.
  double finish_s = 0;
  // Why; a literal, with the numbers in slice_chunks and wait_s.
  const char* reason = "";
};

Plan MakePlan(const PlanInput& input, const PlannerOptions& options = {});

}  // namespace kvcake
