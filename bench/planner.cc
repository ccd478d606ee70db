// What does planning cost the engine when many restorations are open? The real Restorer and the
// engine's turns on a fake clock; only the time under the Restorer's mutex is real.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/benches.h"
#include "bench/harness.h"
#include "sim/simulator.h"

namespace kvcake::bench {
namespace {

constexpr int kPlannedChunk = 128, kPlannedSlice = 512;  // in tokens
constexpr double kStepSeconds = 0.1;                     // a full slice, whatever is before it
constexpr double kChunkSeconds = kStepSeconds * kPlannedChunk / kPlannedSlice;

// `ratio` is a chunk's time on the link to its time in compute.
SimOptions PlannedOptions(int restorations, int chunks, double ratio) {
  return {.compute = {.b = kStepSeconds / kPlannedSlice, .samples = 1},
          .tiers = {{.chunk_s = ratio * kChunkSeconds}},
          .pages = restorations * chunks + 256,
          .chunk_tokens = kPlannedChunk,
          .slice_tokens = kPlannedSlice};
}

// Microseconds a step.
double MeasurePlanner(int restorations, int chunks, double ratio, int steps) {
  Simulator simulator(PlannedOptions(restorations, chunks, ratio));
  simulator.Train();
  const double until_s = steps * kStepSeconds;
  std::vector<SimRequest> requests;
  for (int i = 0; i < restorations; ++i) {
    requests.push_back(
        {.restore = simulator.Request(i, chunks, Policy::kCake), .at_s = 0, .cancel_s = until_s});
    for (const ChunkKey& key : requests.back().restore.keys) simulator.tier(0).Hold(key);
  }
  const Seconds before = simulator.restorer().Stats().planning;
  const TimePoint began = simulator.clock().Now();
  simulator.Run(requests);
  const double planned_s = (simulator.restorer().Stats().planning - before).count();
  const double took_s = std::min(until_s, (simulator.clock().Now() - began).count());
  return 1e6 * planned_s / std::max(1.0, took_s / kStepSeconds);
}

// Chunks that one prompt reads a second, until it is restored.
double ReadsPerSecond(int chunks, double ratio, Policy policy) {
  Simulator simulator(PlannedOptions(1, chunks, ratio));
  simulator.Train();
  const SimRequest request{.restore = simulator.Request(0, chunks, policy), .cancel_s = {}};
  for (const ChunkKey& key : request.restore.keys) simulator.tier(0).Hold(key);
  const SimOutcome outcome = simulator.Run({request})[0];
  return outcome.report.loaded() / kPlannedChunk / outcome.seconds;
}

// Does what decides cost reads, where all that is decided is to read? By the longest prompt and the
// fastest link.
nlohmann::ordered_json CompareReads(const PlannerBenchOptions& options) {
  const int chunks = *std::ranges::max_element(options.chunks);
  const double ratio = *std::ranges::min_element(options.ratios);
  const double load = ReadsPerSecond(chunks, ratio, Policy::kLoad);
  const double cake = ReadsPerSecond(chunks, ratio, Policy::kCake);
  nlohmann::ordered_json row = {{"chunks", chunks},
                                {"ratio", ratio},
                                {"load_reads_per_s", load},
                                {"cake_reads_per_s", cake},
                                {"cake_to_load", nullptr}};
  fmt::print("{} chunks, load/compute {:g}: {:.1f} reads a second by load, {:.1f} by cake", chunks,
             ratio, load, cake);
  if (load > 0) {  // else the link is given up before anything has come
    row["cake_to_load"] = cake / load;
    fmt::print(": {:.3f}", cake / load);
  }
  fmt::print("\n");
  return row;
}

}  // namespace

Status RunPlanner(const PlannerBenchOptions& options) {
  if (options.restorations.size() != options.chunks.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                "--chunks must name as many numbers as --restorations: {}, not {}",
                options.restorations.size(), options.chunks.size());
  }
  auto json = nlohmann::ordered_json::array();
  fmt::print("{:>12} {:>7} {:>13} {:>12} {:>13}\n", "restorations", "chunks", "load/compute",
             "us per step", "share of step");
  for (size_t i = 0; i < options.chunks.size(); ++i) {
    for (const double ratio : options.ratios) {
      const int restorations = options.restorations[i], chunks = options.chunks[i];
      const double us = MeasurePlanner(restorations, chunks, ratio, options.steps);
      const double share = 1e-6 * us / kStepSeconds;
      fmt::print("{:>12} {:>7} {:>13g} {:>12.1f} {:>12.2f}%\n", restorations, chunks, ratio, us,
                 100 * share);
      json.push_back({{"restorations", restorations},
                      {"chunks", chunks},
                      {"ratio", ratio},
                      {"us_per_step", us},
                      {"share_of_step", share}});
    }
  }
  json.push_back(CompareReads(options));
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
