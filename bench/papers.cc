// Every cell of the tables in the Cake paper again, on a fake clock: the paper's machines (as
// fitted), link, length, share of compute and slice, with this planner and with the published one.
// All costs are known exactly and nothing is noisy, so it shows what the planner does at best.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/benches.h"
#include "bench/csv.h"
#include "bench/harness.h"
#include "bench/papers_codecs.h"
#include "bench/simulate_scenario.h"

namespace kvcake::bench {
namespace {

struct PaperTable {
  int number;
  const char* hardware;  // of all rows, where they do not say
  const char* about;
};
constexpr PaperTable kTables[] = {{3, "", "GPUs, compute share, bandwidth"},
                                  {4, "A100", "slice sizes"},
                                  {5, "", "lengths"},
                                  {6, "2xA100", "models"},
                                  {7, "2xA100", "bits of a stored value"}};

// How Cake compares with each lane alone.
struct Speedup {
  double io = 0, compute = 0;

  double overlap() const { return 1 / io + 1 / compute; }
  double against_better() const { return 1 / std::min(io, compute); }
};

struct PaperCell {
  int table = 0;
  std::string what;
  Speedup paper, ours, published;
  double efficiency = 0;  // bound / ours
};

Speedup SpeedupOf(const ScenarioResult& result, double cake_s) {
  return {.io = result.load_s / cake_s, .compute = result.compute_s / cake_s};
}

Result<PaperCell> RunCell(const PaperTable& table, const CsvRow& row,
                          const std::map<std::string, EmulatedProfile>& profiles) {
  PaperCell cell;
  cell.table = table.number;
  std::string hardware = Text(row, "hardware", table.hardware);
  if (hardware == "1xA100") hardware = "A100";
  const std::string name = fmt::format("{} on {}", Text(row, "model", "LongAlpaca-13B"), hardware);
  const auto profile = profiles.find(name);
  if (profile == profiles.end()) {
    return Fail(ErrorCode::kNotFound, "no profile of {}: see --profiles", name);
  }
  ASSIGN_OR_RETURN(const double gbps, Number(row, "gbps"));
  ASSIGN_OR_RETURN(const double tokens, Number(row, "tokens", 16384));
  ASSIGN_OR_RETURN(const double share, Number(row, "utilisation", 1));
  ASSIGN_OR_RETURN(const double slice, Number(row, "compute_chunk", 512));
  ASSIGN_OR_RETURN(const double bits, Number(row, "stored_bits", 16));
  ASSIGN_OR_RETURN(cell.paper.io, Number(row, "x_io"));
  ASSIGN_OR_RETURN(cell.paper.compute, Number(row, "x_compute"));
  cell.what = fmt::format("{}, {} tokens, {:g}% of compute, {:g} Gbit/s, slices of {}, {} bits",
                          name, tokens, 100 * share, gbps, slice, bits);

  Scenario s;
  s.profile = &profile->second;
  s.slice_tokens = static_cast<int>(slice);
  s.chunk_tokens = std::min(128, s.slice_tokens);
  s.chunks = static_cast<int>(tokens) / s.chunk_tokens;
  if (share < 1) s.share = share;
  ScenarioTier tier;
  tier.chunk_s = s.chunk_tokens * static_cast<double>(profile->second.kv_bytes_per_token) * bits /
                 16 * 8 / (gbps * 1e9);
  tier.held.assign(s.chunks, true);
  s.tiers.push_back(std::move(tier));
  const ScenarioResult result = RunScenario(s);
  cell.ours = SpeedupOf(result, result.cake_s);
  cell.published = SpeedupOf(result, result.published_s);
  cell.efficiency = result.efficiency();
  return cell;
}

void PrintTable(const PaperTable& table, const std::vector<PaperCell>& cells) {
  struct Sum {
    double overlap = 0, worst = 0, against = 0;
    void Add(const Speedup& s) {
      overlap += s.overlap();
      worst = std::max(worst, s.overlap());
      against = std::max(against, s.against_better());
    }
  };
  Sum paper, ours, published;
  double efficiency = 0;
  int n = 0;
  for (const PaperCell& cell : cells) {
    if (cell.table != table.number) continue;
    ++n;
    paper.Add(cell.paper);
    ours.Add(cell.ours);
    published.Add(cell.published);
    efficiency += cell.efficiency;
  }
  fmt::print("{} {:<31} {:>5}", table.number, table.about, n);
  for (const Sum* sum : {&paper, &published, &ours}) {
    fmt::print(" | {:>5.2f} {:>5.2f} {:>6.3f}x", sum->overlap / n, sum->worst, sum->against);
  }
  fmt::print(" | {:>6.3f}\n", efficiency / n);
}

nlohmann::ordered_json ToJson(const PaperCell& cell) {
  return {{"table", cell.table},
          {"cell", cell.what},
          {"paper", {{"x_io", cell.paper.io}, {"x_compute", cell.paper.compute}}},
          {"published", {{"x_io", cell.published.io}, {"x_compute", cell.published.compute}}},
          {"cake", {{"x_io", cell.ours.io}, {"x_compute", cell.ours.compute}}},
          {"efficiency", cell.efficiency}};
}

}  // namespace

Status RunPapers(const PapersOptions& options) {
  ASSIGN_OR_RETURN(const auto list, LoadEmulatedProfiles(options.profiles));
  std::map<std::string, EmulatedProfile> profiles;
  for (const EmulatedProfile& profile : list) profiles[profile.name] = profile;
  std::vector<PaperCell> cells;
  for (const PaperTable& table : kTables) {
    const std::string path = fmt::format("{}/cake_table{}.csv", options.tables, table.number);
    ASSIGN_OR_RETURN(const auto rows, ReadCsv(path));
    for (const CsvRow& row : rows) {
      auto cell = RunCell(table, row, profiles);
      if (!cell) return Fail(cell.error().code, "{}: {}", path, cell.error().message);
      cells.push_back(std::move(*cell));
    }
  }
  fmt::print(
      "Simulated: all costs are known exactly and nothing is noisy. Table 7 counts the bytes of\n"
      "quantised caches; dequantising them takes no time.\n\n");
  fmt::print(
      "{:<33} {:>5} | {:^21} | {:^21} | {:^21} | {:>6}\n{:<33} {:>5} | {:>5} {:>5} {:>7} | {:>5} "
      "{:>5} {:>7} | {:>5} {:>5} {:>7} | {:>6}\n",
      "table", "cells", "the paper", "--planner off", "cake", "bound/", "", "", "mean", "most",
      "better", "mean", "most", "better", "mean", "most", "better", "cake");
  for (const PaperTable& table : kTables) PrintTable(table, cells);
  fmt::print(
      "mean and most of 1/x_io + 1/x_compute; better: the most against the better of compute-only "
      "and load-only\n");
  auto json = nlohmann::ordered_json::array();
  for (const PaperCell& cell : cells) json.push_back(ToJson(cell));
  if (!options.codecs.empty()) RETURN_IF_ERROR(PrintCodecsSetting(options, profiles, &json));
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
