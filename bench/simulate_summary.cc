#include "bench/simulate_summary.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

namespace kvcake::bench {
namespace {

using Predicate = std::function<bool(const Scenario&)>;

SimulateClass MakeClass(std::string name, const std::vector<ScenarioRow>& rows,
                        const Predicate& belongs) {
  SimulateClass c{.name = std::move(name)};
  std::vector<double> efficiency, against;
  for (const auto& [scenario, result] : rows) {
    if (!belongs(scenario)) continue;
    if (c.count++ == 0 ||
        result.efficiency() < *std::min_element(efficiency.begin(), efficiency.end())) {
      c.least_seed = scenario.seed;
    }
    efficiency.push_back(result.efficiency());
    against.push_back(result.against_better());
    c.published += result.bound_s / result.published_s;
    c.fixed += result.bound_s / result.static_s;
  }
  if (c.count == 0) return c;
  c.published /= c.count;
  c.fixed /= c.count;
  c.efficiency = PercentilesOf(std::move(efficiency));
  c.against_better = PercentilesOf(std::move(against));
  return c;
}

bool Known(const Scenario& s) { return s.knowledge == Knowledge::kExact && !s.noisy(); }
bool FirstRun(const Scenario& s) {
  return s.knowledge == Knowledge::kWarmUp || s.knowledge == Knowledge::kNothing;
}
bool Fitted(const Scenario& s) { return !FirstRun(s) && s.knowledge != Knowledge::kStale; }

template <typename Of>
std::vector<size_t> Sorted(const std::vector<ScenarioRow>& rows, size_t count, Of of) {
  std::vector<size_t> order;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].scenario.tokens() >= kTokensMin) order.push_back(i);
  }
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](size_t a, size_t b) { return of(rows[a].result) < of(rows[b].result); });
  order.resize(count);
  return order;
}

}  // namespace

Percentiles PercentilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return {.mean = std::accumulate(values.begin(), values.end(), 0.0) / values.size(),
          .median = at(0.5),
          .p1 = at(0.01),
          .p5 = at(0.05),
          .p95 = at(0.95),
          .p99 = at(0.99),
          .min = values.front(),
          .max = values.back()};
}

std::vector<SimulateClass> Classify(const std::vector<ScenarioRow>& rows) {
  std::vector<SimulateClass> classes;
  const auto add = [&](std::string name, const Predicate& belongs) {
    classes.push_back(MakeClass(std::move(name), rows, belongs));
  };
  const auto plain = [](const Scenario& s) {
    return s.tokens() >= kTokensMin && s.tiers.size() == 1;
  };
  const auto steady = [&](const Scenario& s) { return plain(s) && s.change == Change::kNone; };
  const auto known = [&](const Scenario& s) { return steady(s) && Known(s); };
  add("known, all stored, from 4K",
      [&](const Scenario& s) { return known(s) && s.present == 1 && s.tokens() >= 4096; });
  add("known, all stored, from 2K",
      [&](const Scenario& s) { return known(s) && s.present == 1 && s.tokens() < 4096; });
  add("known, holes", [&](const Scenario& s) { return known(s) && s.present < 1; });
  add("noisy", [&](const Scenario& s) { return steady(s) && !Known(s) && Fitted(s); });
  add("stale fit",
      [&](const Scenario& s) { return steady(s) && s.knowledge == Knowledge::kStale; });
  add("first run", [&](const Scenario& s) { return steady(s) && FirstRun(s); });
  const auto changes = [&](Change change, std::optional<Shape> shape) {
    return [=](const Scenario& s) {
      // What holes cost in shared steps the bound does not say.
      if (change == Change::kShare && s.present < 1) return false;
      return plain(s) && Fitted(s) && s.change == change && (!shape || s.shape == *shape);
    };
  };
  for (Change change : {Change::kShare, Change::kLink, Change::kCompute, Change::kBoth}) {
    add(std::string(ChangeName(change)) + (change == Change::kShare ? "" : " changes"),
        changes(change, {}));
    for (int i = 0; i <= static_cast<int>(Shape::kFile); ++i) {
      const auto shape = static_cast<Shape>(i);
      add(std::string("  ") + ShapeName(shape), changes(change, shape));
    }
  }
  add("changes, stale or first run",
      [&](const Scenario& s) { return plain(s) && !Fitted(s) && s.change != Change::kNone; });
  add("several tiers",
      [](const Scenario& s) { return s.tokens() >= kTokensMin && s.tiers.size() > 1; });
  add("short prompts", [](const Scenario& s) { return s.tokens() < kTokensMin; });
  add("all", [](const Scenario&) { return true; });
  std::erase_if(classes, [](const SimulateClass& c) { return c.count == 0; });
  return classes;
}

std::vector<size_t> LeastEfficient(const std::vector<ScenarioRow>& rows, size_t count) {
  return Sorted(rows, count, [](const ScenarioResult& r) { return r.efficiency(); });
}

std::vector<size_t> WorstAgainstBetter(const std::vector<ScenarioRow>& rows, size_t count) {
  return Sorted(rows, count, [](const ScenarioResult& r) { return -r.against_better(); });
}

nlohmann::ordered_json ToJson(const Percentiles& s) {
  return {{"mean", s.mean}, {"median", s.median}, {"p1", s.p1},   {"p5", s.p5},
          {"p95", s.p95},   {"p99", s.p99},       {"min", s.min}, {"max", s.max}};
}

nlohmann::ordered_json ToJson(const SimulateClass& c) {
  return {{"class", c.name},
          {"scenarios", c.count},
          {"efficiency", ToJson(c.efficiency)},
          {"against_better", ToJson(c.against_better)},
          {"least_seed", c.least_seed},
          {"efficiency_published", c.published},
          {"efficiency_static_split", c.fixed}};
}

nlohmann::ordered_json ToJson(const ScenarioRow& row) {
  const ScenarioResult& r = row.result;
  return {{"seed", row.scenario.seed},    {"scenario", row.scenario.Describe()},
          {"cake_s", r.cake_s},           {"cake_published_s", r.published_s},
          {"compute_s", r.compute_s},     {"load_s", r.load_s},
          {"static_split_s", r.static_s}, {"bound_s", r.bound_s},
          {"efficiency", r.efficiency()}, {"against_better", r.against_better()}};
}

}  // namespace kvcake::bench
