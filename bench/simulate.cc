// How close to the bound is a restoration on machines, links and changes of both that are not here?
// The real claims, planner and cost models on a fake clock.
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "base/on_threads.h"
#include "bench/benches.h"
#include "bench/harness.h"
#include "bench/simulate_summary.h"

namespace kvcake::bench {
namespace {

constexpr size_t kWorst = 10;
constexpr double kSpeedMax = 1e6;

std::vector<ScenarioRow> RunAll(const SimulateOptions& options,
                                const std::vector<EmulatedProfile>& profiles,
                                const ScenarioTraces& traces) {
  std::vector<ScenarioRow> rows(options.scenarios);
  std::atomic<int> next = 0;
  OnThreads(options.threads > 0 ? options.threads : UsableCores(), [&] {
    for (int i = next++; i < options.scenarios; i = next++) {
      rows[i].scenario = RandomScenario(options.seed + i, profiles, traces);
      rows[i].result = RunScenario(rows[i].scenario);
    }
  });
  return rows;
}

void Print(const std::vector<SimulateClass>& classes) {
  fmt::print("\n{:<28} {:>8} | {:>6} {:>6} {:>6} {:>6} | {:>6} {:>6} {:>6} | {:>6} {:>6} {:>9}\n",
             "", "", "bound/", "cake", "", "", "cake/", "better", "", "bound/", "bound/",
             "seed of");
  fmt::print("{:<28} {:>8} | {:>6} {:>6} {:>6} {:>6} | {:>6} {:>6} {:>6} | {:>6} {:>6} {:>9}\n",
             "rates", "runs", "mean", "5%", "1%", "least", "median", "99%", "most", "publ.",
             "static", "least");
  for (const SimulateClass& c : classes) {
    fmt::print(
        "{:<28} {:>8} | {:>6.3f} {:>6.3f} {:>6.3f} {:>6.3f} | {:>6.3f} {:>6.3f} {:>6.3f} | "
        "{:>6.3f} {:>6.3f} {:>9}\n",
        c.name, c.count, c.efficiency.mean, c.efficiency.p5, c.efficiency.p1, c.efficiency.min,
        c.against_better.median, c.against_better.p99, c.against_better.max, c.published, c.fixed,
        c.least_seed);
  }
}

void PrintWorst(const char* title, const std::vector<ScenarioRow>& rows,
                const std::vector<size_t>& worst) {
  fmt::print("\n{}\n", title);
  for (size_t i : worst) {
    const auto& [s, r] = rows[i];
    fmt::print(
        "  seed {}: {:.3f}, {:.2f}x better; cake {:.3f} s, compute {:.3f}, load {:.3f}, "
        "published {:.3f}, static {:.3f}, bound {:.3f}\n    {}\n",
        s.seed, r.efficiency(), r.against_better(), r.cake_s, r.compute_s, r.load_s, r.published_s,
        r.static_s, r.bound_s, s.Describe());
  }
}

// The one scenario that somebody wants to understand.
void PrintReasons(const Scenario& scenario) {
  const RestoreReport report = RunPolicy(scenario, Policy::kCake).report;
  for (const TimelineEntry& e : report.timeline) {
    fmt::print("{:>10.4f} {:>10.4f} {:>8} tokens {} to {} {}\n", e.start_s, e.end_s, e.lane,
               e.first_token, e.first_token + e.tokens, OutcomeName(e.outcome));
  }
  for (const std::string& reason : report.reasons) fmt::print("  {}\n", reason);
}

}  // namespace

Status RunSimulate(const SimulateOptions& options) {
  ASSIGN_OR_RETURN(const auto profiles, LoadEmulatedProfiles(options.profiles));
  ScenarioTraces traces;
  if (!options.link_trace.empty()) {
    ASSIGN_OR_RETURN(traces.link, ReadSpeedTrace("--link-trace", options.link_trace, kSpeedMax));
  }
  if (!options.compute_trace.empty()) {
    ASSIGN_OR_RETURN(traces.compute,
                     ReadSpeedTrace("--compute-trace", options.compute_trace, kSpeedMax));
  }
  const TimePoint began = Clock::Real().Now();
  const auto rows = RunAll(options, profiles, traces);
  const double seconds = (Clock::Real().Now() - began).count();
  const auto classes = Classify(rows);
  const auto least = LeastEfficient(rows, kWorst), against = WorstAgainstBetter(rows, kWorst);
  fmt::print("{} scenarios from seed {} in {:.0f} s\n", rows.size(), options.seed, seconds);
  Print(classes);
  double turns = 0, planning_s = 0, cake_s = 0;
  for (const auto& [scenario, result] : rows) {
    turns += result.turns, planning_s += result.planning_s, cake_s += result.cake_s;
  }
  fmt::print("\nplanning, claims and report: {:.1f} us a turn, {:.3f}% of the time restored in\n",
             1e6 * planning_s / turns, 100 * planning_s / cake_s);
  PrintWorst("least efficient", rows, least);
  PrintWorst("worst against the better of compute-only and load-only", rows, against);
  if (rows.size() == 1) PrintReasons(rows[0].scenario);
  if (options.json.empty()) return {};
  nlohmann::ordered_json json = {{"scenarios", options.scenarios}, {"seed", options.seed}};
  for (const SimulateClass& c : classes) json["classes"].push_back(ToJson(c));
  for (size_t i : least) json["least_efficient"].push_back(ToJson(rows[i]));
  for (size_t i : against) json["worst_against_better"].push_back(ToJson(rows[i]));
  return WriteJson(options.json, json);
}

}  // namespace kvcake::bench
