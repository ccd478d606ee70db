#include "bench/simulate_scenario.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "base/check.h"

namespace kvcake::bench {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : rng_(seed) {}
  double Uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(rng_() >> 11) * 0x1p-53);
  }
  double LogUniform(double low, double high) {
    return std::exp(Uniform(std::log(low), std::log(high)));
  }
  int Int(int low, int high) { return low + static_cast<int>(rng_() % (high - low + 1)); }
  bool Chance(double p) { return Uniform(0, 1) < p; }
  // The index of one of the weights.
  int Weighted(std::initializer_list<double> weights) {
    double left = Uniform(0, 1);
    int i = 0;
    for (double w : weights) {
      if (left < w) return i;
      left -= w;
      ++i;
    }
    return static_cast<int>(weights.size()) - 1;
  }

 private:
  std::mt19937_64 rng_;
};

// Draws speeds for something that would take about span_s.
SpeedTrace RandomTrace(Random& random, Shape shape, double span_s, double speed_max) {
  const double at = span_s * random.Uniform(0.05, 0.95);
  switch (shape) {
    case Shape::kStep:
      return SpeedTrace({{0, 1}, {at, random.Chance(0.5) ? 0.5 : std::min(2.0, speed_max)}});
    case Shape::kZero:
      return SpeedTrace({{0, 1}, {at, 0}, {at + span_s * random.Uniform(0.1, 0.5), 1}});
    case Shape::kRamp: {
      std::vector<SpeedPoint> points = {{0, 1}};
      const double to = random.LogUniform(0.2, speed_max > 1 ? 5 : 1), end = at + span_s / 2;
      for (int i = 1; i <= 20; ++i) {
        points.push_back({at + (end - at) * i / 20, 1 + (to - 1) * i / 20});
      }
      return SpeedTrace(points);
    }
    case Shape::kBursts: {
      std::vector<SpeedPoint> points = {{0, 1}};
      const double slow = random.Uniform(0, 0.5);
      double s = 0;
      for (int i = 0; s < 8 * span_s; ++i) {
        s += span_s * random.LogUniform(0.02, 0.5);
        points.push_back({s, i % 2 == 0 ? slow : 1});
      }
      points.push_back({s + span_s, 1});
      return SpeedTrace(points);
    }
    default: {  // as the paper draws rates and budgets: uniform from 0
      std::vector<SpeedPoint> points = {{0, random.Uniform(0, speed_max)}};
      const double every = span_s * random.LogUniform(0.02, 0.2);
      for (double s = every; s < 8 * span_s; s += every) {
        points.push_back({s, random.Uniform(0, speed_max)});
      }
      points.push_back({points.back().at_s + every, speed_max / 2});
      return SpeedTrace(points);
    }
  }
}

std::vector<bool> RandomHeld(Random& random, int chunks, double present) {
  std::vector<bool> held(chunks, true);
  const int absent = chunks - static_cast<int>(std::lround(present * chunks));
  const int kind = random.Int(0, 2);
  std::vector<int> order(chunks);
  for (int i = 0; i < chunks; ++i) order[i] = i;
  if (kind == 0) {  // scattered
    for (int i = chunks - 1; i > 0; --i) std::swap(order[i], order[random.Int(0, i)]);
  } else if (kind == 1) {  // an unseen suffix
    std::reverse(order.begin(), order.end());
  }  // else an evicted front
  for (int i = 0; i < absent; ++i) held[order[i]] = false;
  return held;
}

double ComputeSeconds(const Scenario& s) {
  const int slice = std::max(1, s.slice_tokens / s.chunk_tokens);
  double seconds = 0;
  for (int i = 0; i < s.chunks; i += slice) {
    const int count = std::min(slice, s.chunks - i);
    seconds += s.SliceSeconds(i * s.chunk_tokens, count * s.chunk_tokens);
  }
  return seconds;
}

void AddTiers(Random& random, Scenario& s) {
  const double compute_s = ComputeSeconds(s);
  const int count = 1 + random.Weighted({0.85, 0.1, 0.05});
  s.ratio = random.LogUniform(1.0 / 16, 16);
  s.present = random.Chance(0.6) ? 1 : random.Int(1, 3) * 0.25;
  const double jitter = random.Chance(0.6) ? 0 : random.Uniform(0.05, 0.3);
  for (int t = 0; t < count; ++t) {
    ScenarioTier tier;
    tier.chunk_s = compute_s * (t == 0 ? s.ratio : random.LogUniform(1.0 / 16, 16)) / s.chunks;
    const int kind = random.Weighted({0.5, 0.15, 0.15, 0.2});
    const double latencies[] = {0, 1e-3, 10e-3, tier.chunk_s * random.LogUniform(0.01, 4)};
    tier.latency_s = latencies[kind];
    tier.jitter = jitter;
    tier.held = RandomHeld(random, s.chunks, t == 0 ? s.present : random.Int(1, 4) * 0.25);
    s.tiers.push_back(std::move(tier));
  }
}

void AddKnowledge(Random& random, Scenario& s) {
  s.compute_jitter = random.Chance(0.6) ? 0 : random.Uniform(0.02, 0.15);
  s.knowledge = static_cast<Knowledge>(random.Weighted({0.55, 0.15, 0.15, 0.08, 0.07}));
  if (s.knowledge != Knowledge::kStale) return;
  s.believed = random.LogUniform(0.5, 2);
  for (ScenarioTier& tier : s.tiers) tier.believed = random.LogUniform(0.25, 4);
}

void AddChange(Random& random, const ScenarioTraces& traces, Scenario& s) {
  if (traces.link || traces.compute) {
    s.shape = Shape::kFile;
    s.change = !traces.compute ? Change::kLink : !traces.link ? Change::kCompute : Change::kBoth;
    if (traces.compute) s.compute_speed = *traces.compute;
    if (traces.link) {
      for (ScenarioTier& tier : s.tiers) tier.speed = *traces.link;
    }
    return;
  }
  s.change = static_cast<Change>(random.Weighted({0.5, 0.17, 0.12, 0.11, 0.1}));
  const double span_s = LeastTime(s).bound_s;
  if (s.change == Change::kShare) {
    s.shape = random.Chance(0.5) ? Shape::kNone : Shape::kRandom;
    s.share = random.Int(1, 7) * 0.125;
    if (s.shape == Shape::kNone) return;
    s.share = 0.5;
    s.shares = RandomTrace(random, s.shape, 2 * span_s, 1);
    return;
  }
  if (s.change == Change::kNone) return;
  s.shape = static_cast<Shape>(random.Int(1, 5));
  const bool link = s.change != Change::kCompute, compute = s.change != Change::kLink;
  if (compute) s.compute_speed = RandomTrace(random, s.shape, span_s, 2);
  if (!link) return;
  for (ScenarioTier& tier : s.tiers) tier.speed = RandomTrace(random, s.shape, span_s, 2);
}

}  // namespace

Result<std::vector<EmulatedProfile>> LoadEmulatedProfiles(const std::string& path) {
  std::vector<std::string> files;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path());
    }
  } else {
    files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  std::vector<EmulatedProfile> profiles;
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(EmulatedProfile profile, LoadEmulatedProfile(file));
    profiles.push_back(std::move(profile));
  }
  if (profiles.empty()) {
    return Fail(ErrorCode::kNotFound, "--profiles {} has no *.json: see bench/profiles", path);
  }
  return profiles;
}

const char* KnowledgeName(Knowledge knowledge) {
  constexpr const char* kNames[] = {"exact", "noisy", "stale", "warm-up", "nothing"};
  return kNames[static_cast<int>(knowledge)];
}

const char* ChangeName(Change change) {
  constexpr const char* kNames[] = {"none", "link", "compute", "both", "share"};
  return kNames[static_cast<int>(change)];
}

const char* ShapeName(Shape shape) {
  constexpr const char* kNames[] = {"constant", "step", "zero", "ramp", "bursts", "random", "file"};
  return kNames[static_cast<int>(shape)];
}

bool Scenario::noisy() const {
  const auto jitters = [](const ScenarioTier& tier) { return tier.jitter > 0; };
  return compute_jitter > 0 || std::any_of(tiers.begin(), tiers.end(), jitters);
}

double Scenario::SliceSeconds(double prefix, double tokens) const {
  return profile->SecondsFor(prefix, tokens);
}

std::string Scenario::Describe() const {
  std::string text = fmt::format(
      "{}, {} tokens in chunks of {}, load/compute {:.3g}, {:.0f}% stored, {} known", profile->name,
      tokens(), chunk_tokens, ratio, 100 * present, KnowledgeName(knowledge));
  if (change != Change::kNone) {
    text += fmt::format(", {} {}", ChangeName(change), ShapeName(shape));
  }
  if (share && !shares) text += fmt::format(" {}", *share);
  if (noisy()) text += fmt::format(", noise {:.2f}/{:.2f}", compute_jitter, tiers[0].jitter);
  if (tiers[0].latency_s > 0) text += fmt::format(", latency {:.3g} s", tiers[0].latency_s);
  if (tiers.size() > 1) text += fmt::format(", {} tiers", tiers.size());
  return text;
}

Scenario RandomScenario(uint64_t seed, const std::vector<EmulatedProfile>& profiles,
                        const ScenarioTraces& traces) {
  Random random(seed * 0x9e3779b97f4a7c15 + 1);
  Scenario s;
  s.seed = seed;
  s.profile = &profiles[random.Int(0, static_cast<int>(profiles.size()) - 1)];
  constexpr int kChunkTokens[] = {128, 64, 256};
  s.chunk_tokens = kChunkTokens[random.Weighted({0.7, 0.15, 0.15})];
  const double tokens =
      random.Chance(0.1) ? random.LogUniform(128, 2048) : random.LogUniform(2048, 16384);
  s.chunks = std::max(1, static_cast<int>(std::lround(tokens / s.chunk_tokens)));
  AddTiers(random, s);
  AddKnowledge(random, s);
  AddChange(random, traces, s);
  return s;
}

namespace {

void TeachCompute(const Scenario& s, Simulator& sim) {
  if (s.knowledge == Knowledge::kNothing) return;
  Random random(s.seed);
  auto samples = nlohmann::json::array();
  const auto add = [&](int prefix, int tokens) {
    const double noise = s.knowledge == Knowledge::kNoisy ? random.Uniform(0.85, 1.15) : 1;
    samples.push_back({prefix, tokens, s.SliceSeconds(prefix, tokens) * noise / s.believed});
  };
  if (s.knowledge == Knowledge::kWarmUp) {
    for (int tokens = 16; tokens <= s.slice_tokens; tokens *= 2) add(0, tokens);
  } else {
    // As earlier prompts have left them: long slices mostly, some that were shrunk.
    for (int i = 0; i < 48; ++i) {
      const int prefix = random.Int(0, 31) * s.slice_tokens;
      const int chunks = std::max(1, s.slice_tokens / s.chunk_tokens);
      const int count = random.Chance(0.7) ? chunks : random.Int(1, chunks);
      add(prefix, count * s.chunk_tokens);
    }
  }
  CHECK(sim.cost().FromJson({{"version", 1}, {"samples", samples}}).has_value());
}

void TeachTiers(const Scenario& s, Simulator& sim) {
  if (s.knowledge == Knowledge::kWarmUp || s.knowledge == Knowledge::kNothing) return;
  Random random(s.seed + 1);
  const double bytes = static_cast<double>(sim.pool().layout().page_bytes());
  for (size_t t = 0; t < s.tiers.size(); ++t) {
    const ScenarioTier& tier = s.tiers[t];
    const double noise = s.knowledge == Knowledge::kNoisy ? random.Uniform(0.85, 1.15) : 1;
    CHECK(sim.restorer()
              .TierCostFromJson(static_cast<int>(t),
                                {{"version", 1},
                                 {"fixed_s", tier.latency_s},
                                 {"bytes_per_s", bytes / tier.chunk_s * tier.believed * noise},
                                 {"read_bytes", bytes}})
              .has_value());
  }
}

}  // namespace

SimOutcome RunPolicy(const Scenario& s, Policy policy, std::optional<int> split) {
  SimOptions options;
  options.slice_s = [&](double prefix, double tokens) { return s.SliceSeconds(prefix, tokens); };
  options.compute_jitter = s.compute_jitter;
  options.compute_speed = s.compute_speed;
  if (s.share) options.compute_share = s.shares ? *s.shares : SpeedTrace({{0, *s.share}});
  for (size_t t = 0; t < s.tiers.size(); ++t) {
    const ScenarioTier& tier = s.tiers[t];
    options.tiers.push_back({.name = fmt::format("tier{}", t),
                             .chunk_s = tier.chunk_s,
                             .latency_s = tier.latency_s,
                             .jitter = tier.jitter,
                             .speed = tier.speed});
  }
  constexpr int kPagesForLateReads = 64;
  options.pages = s.chunks + kPagesForLateReads;
  options.chunk_tokens = s.chunk_tokens;
  options.slice_tokens = s.slice_tokens;
  options.seed = s.seed;
  Simulator sim(std::move(options));
  TeachCompute(s, sim);
  TeachTiers(s, sim);
  const auto keys = sim.Keys(1, s.chunks);
  for (size_t t = 0; t < s.tiers.size(); ++t) {
    for (int i = 0; i < s.chunks; ++i) {
      if (s.tiers[t].held[i]) sim.tier(static_cast<int>(t)).Hold(keys[i]);
    }
  }
  SimRequest request{.restore = sim.Request(1, s.chunks, policy), .cancel_s = {}};
  request.restore.forced_split = split;
  SimOutcome outcome = sim.Run({request})[0];
  // The last token, which somebody has to compute.
  outcome.seconds = s.compute_speed.EndOf(outcome.seconds, s.SliceSeconds(s.tokens(), 1));
  return outcome;
}

ScenarioResult RunScenario(const Scenario& s) {
  const auto seconds = [&](Policy policy) { return RunPolicy(s, policy).seconds; };
  const SimOutcome cake = RunPolicy(s, Policy::kCake);
  return {.cake_s = cake.seconds,
          .published_s = seconds(Policy::kPublished),
          .compute_s = seconds(Policy::kCompute),
          .load_s = seconds(Policy::kLoad),
          .static_s = RunPolicy(s, Policy::kCake, LeastTimeAtStart(s).split).seconds,
          .bound_s = LeastTime(s).bound_s,
          .turns = cake.report.turns,
          .planning_s = cake.report.planning_s};
}

}  // namespace kvcake::bench
