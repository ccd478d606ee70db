// What many simulated restorations come to.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/simulate_scenario.h"

namespace kvcake::bench {

struct ScenarioRow {
  Scenario scenario;
  ScenarioResult result;
};

// Efficiency is judged from this length on: less is a few chunks, none of which can be cut.
constexpr int kTokensMin = 2048;

struct Percentiles {
  double mean = 0, median = 0, p1 = 0, p5 = 0, p95 = 0, p99 = 0, min = 0, max = 0;
};
Percentiles PercentilesOf(std::vector<double> values);  // all 0 of none

struct SimulateClass {
  std::string name;
  int count = 0;
  Percentiles efficiency = {};      // bound / cake
  Percentiles against_better = {};  // cake / the better of compute-only and load-only
  uint64_t least_seed = 0;          // whose efficiency is the least
  double published = 0;             // means of bound / cake as published, and
  double fixed = 0;                 // bound / a split that is planned at the beginning and kept
};

// By what is known and what changes, from one tier; then those from several, and all of them.
std::vector<SimulateClass> Classify(const std::vector<ScenarioRow>& rows);
// The least efficient, and those that lose most to the better lane; indices.
std::vector<size_t> LeastEfficient(const std::vector<ScenarioRow>& rows, size_t count);
std::vector<size_t> WorstAgainstBetter(const std::vector<ScenarioRow>& rows, size_t count);

nlohmann::ordered_json ToJson(const SimulateClass& c);
nlohmann::ordered_json ToJson(const ScenarioRow& row);

}  // namespace kvcake::bench
