// One random restoration on a machine of bench/profiles: what bench simulate runs thousands of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/emulated_profile.h"
#include "sim/simulator.h"

namespace kvcake::bench {

// A profile, or those of a directory, by their files' names.
Result<std::vector<EmulatedProfile>> LoadEmulatedProfiles(const std::string& path);

// What is known of the lanes when the restoration begins.
enum class Knowledge {
  kExact,
  kNoisy,   // fitted to samples that were up to 15% off
  kStale,   // both lanes were another speed when they were measured
  kWarmUp,  // a first run: short slices from the beginning, and nothing of the tiers
  kNothing,
};
const char* KnowledgeName(Knowledge knowledge);

// Which lanes' speeds change, and how.
enum class Change { kNone, kLink, kCompute, kBoth, kShare };
const char* ChangeName(Change change);
enum class Shape { kNone, kStep, kZero, kRamp, kBursts, kRandom, kFile };
const char* ShapeName(Shape shape);

struct ScenarioTier {
  double chunk_s = 0, latency_s = 0, jitter = 0;
  SpeedTrace speed = {};
  double believed = 1;  // kStale: of the true speed
  std::vector<bool> held = {};
};

struct Scenario {
  uint64_t seed = 0;
  const EmulatedProfile* profile = nullptr;
  int chunks = 0, chunk_tokens = 128, slice_tokens = 512;
  double ratio = 1;  // of the time to load every chunk from the first tier to computing them
  double present = 1;
  std::vector<ScenarioTier> tiers = {};
  double compute_jitter = 0;
  SpeedTrace compute_speed = {};
  double believed = 1;                    // kStale: compute's speed, of the true one
  std::optional<double> share = {};       // of each step, where it is below 1
  std::optional<SpeedTrace> shares = {};  // the same as it changes
  Knowledge knowledge = Knowledge::kExact;
  Change change = Change::kNone;
  Shape shape = Shape::kNone;

  int tokens() const { return chunks * chunk_tokens; }
  bool noisy() const;
  double SliceSeconds(double prefix, double tokens) const;
  std::string Describe() const;
};

struct ScenarioTraces {
  std::optional<SpeedTrace> link = {}, compute = {};  // instead of made-up ones
};

// The same for the same seed.
Scenario RandomScenario(uint64_t seed, const std::vector<EmulatedProfile>& profiles,
                        const ScenarioTraces& traces);

// The least time in which the prompt could be restored and its last token computed by whoever knew
// all speeds beforehand, whichever chunks are computed and whichever loaded. Of shared steps: when
// chunks are computed from the front and where there are holes, a step after the other. `split`:
// where computing from the front should end, the best of splits into whole chunks.
struct Hindsight {
  double bound_s = 0;
  int split = 0;
};
Hindsight LeastTime(const Scenario& scenario);
// As if nothing were to change after the beginning.
Hindsight LeastTimeAtStart(const Scenario& scenario);

// What a run took under each policy, in seconds to the first token.
struct ScenarioResult {
  double cake_s = 0, published_s = 0, compute_s = 0, load_s = 0, static_s = 0, bound_s = 0;
  int turns = 0;  // of cake's engine, and the real time of their planning
  double planning_s = 0;

  double better_s() const { return compute_s < load_s ? compute_s : load_s; }
  double efficiency() const { return bound_s / cake_s; }
  double against_better() const { return cake_s / better_s(); }
};
ScenarioResult RunScenario(const Scenario& scenario);
// One policy alone; `split`: computes [0, split) and loads the rest, whatever happens.
SimOutcome RunPolicy(const Scenario& scenario, Policy policy, std::optional<int> split = {});

}  // namespace kvcake::bench
