// How long is the wait for the first token under each policy, from slow links to fast ones?
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/harness.h"
#include "bench/svg.h"
#include "store/store_dir.h"

namespace kvcake::bench {
namespace {

struct Cell {
  double ratio = 0;
  double rate_bytes_per_s = 0;
  std::array<std::vector<double>, kPolicies.size()> ttft_s;
  std::vector<double> bounds;  // one a repeat
  int meeting_token = 0;

  double ttft(Policy policy) const { return Median(ttft_s[Index(policy)]); }
  double bound() const { return Median(bounds); }
  double efficiency() const { return bound() / ttft(Policy::kCake); }
  // Interleaved pairs: each repeat's cake against the better of its neighbours.
  double against_better() const {
    std::vector<double> ratios;
    for (size_t i = 0; i < bounds.size(); ++i) {
      ratios.push_back(
          ttft_s[Index(Policy::kCake)][i] /
          std::min(ttft_s[Index(Policy::kCompute)][i], ttft_s[Index(Policy::kLoad)][i]));
    }
    return Median(ratios);
  }
  static int Index(Policy policy) {
    return static_cast<int>(std::find(kPolicies.begin(), kPolicies.end(), policy) -
                            kPolicies.begin());
  }
};

Result<Cell> MeasureCell(Runtime& runtime, const std::vector<int32_t>& prompt, double ratio,
                         double compute_s, int repeats) {
  Cell cell;
  cell.ratio = ratio;
  const double chunks = static_cast<double>(prompt.size() / runtime.options().chunk_tokens);
  cell.rate_bytes_per_s =
      chunks * static_cast<double>(runtime.pool().layout().page_bytes()) / (ratio * compute_s);
  runtime.link()->SetRate(cell.rate_bytes_per_s);
  // The planner still believes in the last link; a user's does not change under him.
  RETURN_IF_ERROR(
      RunCold(runtime, prompt, Policy::kLoad, 1, /*store=*/true).map([](const auto&) {}));
  for (int repeat = 0; repeat < repeats; ++repeat) {
    ASSIGN_OR_RETURN(const auto done, RunPolicies(runtime, prompt, /*store=*/true));
    for (size_t i = 0; i < kPolicies.size(); ++i) cell.ttft_s[i].push_back(done[i].ttft_s);
    ASSIGN_OR_RETURN(const double bound,
                     MeasuredBound(done[0], done[1], runtime.compute_cost().fit()));
    cell.bounds.push_back(bound);
    cell.meeting_token = done[2].report.meeting_token;
  }
  return cell;
}

// TTFT of each policy and the bound over the link speed, both axes logarithmic.
std::string Draw(const std::vector<Cell>& cells, const std::string& title) {
  constexpr double kWidth = 760, kHeight = 440, kLeft = 70, kRight = 150, kTop = 50, kBottom = 60;
  double low = 1e30, high = 0;
  for (const Cell& cell : cells) {
    low = std::min(low, cell.bound());
    for (Policy policy : kPolicies) high = std::max(high, cell.ttft(policy));
  }
  low *= 0.8;
  high *= 1.2;
  const auto x = [&](double ratio) {
    const double first = std::log(cells.front().ratio), last = std::log(cells.back().ratio);
    return kLeft +
           (kWidth - kLeft - kRight) * (std::log(ratio) - first) / std::max(last - first, 1e-9);
  };
  const auto y = [&](double seconds) {
    return kTop + (kHeight - kTop - kBottom) * (std::log(high) - std::log(seconds)) /
                      (std::log(high) - std::log(low));
  };
  Svg svg(kWidth, kHeight);
  svg.Text(kLeft, 28, title, Svg::Anchor::kStart, 16);
  for (const Cell& cell : cells) {
    svg.Line(x(cell.ratio), kTop, x(cell.ratio), kHeight - kBottom, "#eee");
    svg.Text(x(cell.ratio), kHeight - kBottom + 18, fmt::format("{:g}", cell.ratio),
             Svg::Anchor::kMiddle);
  }
  for (int exponent = -6; exponent <= 6; ++exponent) {
    for (double mantissa : {1.0, 2.0, 5.0}) {
      const double tick = mantissa * std::pow(10.0, exponent);
      if (tick < low || tick > high) continue;
      svg.Line(kLeft, y(tick), kWidth - kRight, y(tick), "#eee");
      svg.Text(kLeft - 8, y(tick) + 4, fmt::format("{:g} s", tick), Svg::Anchor::kEnd);
    }
  }
  svg.Text((kLeft + kWidth - kRight) / 2, kHeight - 16, "load time / compute time",
           Svg::Anchor::kMiddle);
  const auto plot = [&](const char* label, const char* colour, int row, auto&& value) {
    std::vector<std::pair<double, double>> points;
    for (const Cell& cell : cells) points.emplace_back(x(cell.ratio), y(value(cell)));
    svg.Polyline(points, colour);
    for (const auto& [px, py] : points) svg.Circle(px, py, 3, colour);
    svg.Line(kWidth - kRight + 15, kTop + 20 * row, kWidth - kRight + 35, kTop + 20 * row, colour,
             2);
    svg.Text(kWidth - kRight + 42, kTop + 20 * row + 4, label);
  };
  plot("bound", "#999", 3, [](const Cell& c) { return c.bound(); });
  plot("compute-only", "#d9822b", 0, [](const Cell& c) { return c.ttft(Policy::kCompute); });
  plot("load-only", "#2b7bd9", 1, [](const Cell& c) { return c.ttft(Policy::kLoad); });
  plot("cake", "#1a9850", 2, [](const Cell& c) { return c.ttft(Policy::kCake); });
  return svg.Finish();
}

nlohmann::ordered_json ToJson(const std::vector<Cell>& cells, const std::string& model,
                              const TtftOptions& options) {
  auto json = nlohmann::ordered_json::array();
  for (const Cell& cell : cells) {
    for (Policy policy : kPolicies) {
      json.push_back({{"model", model},
                      {"context", options.context},
                      {"ratio", cell.ratio},
                      {"latency_ms", options.latency_s * 1e3},
                      {"present", 1.0},
                      {"policy", PolicyName(policy)},
                      {"ttft_s", cell.ttft(policy)},
                      {"bound_s", cell.bound()},
                      {"efficiency", cell.bound() / cell.ttft(policy)},
                      {"repeats", cell.ttft_s[Cell::Index(policy)]},
                      {"cpu", CpuName()}});
    }
  }
  return json;
}

}  // namespace

Status RunTtft(const TtftOptions& options) {
  const std::string store = CacheDir() + "/bench-ttft";
  (void)ClearStore(store);  // of the last run, if there was one
  RuntimeOptions runtime_options{.model_dir = options.model_dir,
                                 .stores = {{.dir = store,
                                             .load_rate_bytes_per_s = 1e12,
                                             .load_latency = Seconds(options.latency_s)}},
                                 .threads = options.threads};
  if (options.context < runtime_options.chunk_tokens) {
    return Fail(ErrorCode::kInvalidArgument, "--context must hold at least a chunk of {} tokens",
                runtime_options.chunk_tokens);
  }
  if (runtime_options.model_dir.empty()) {
    ASSIGN_OR_RETURN(runtime_options.model_dir, SynthModelDir(options.arch));
  }
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(runtime_options));
  const std::string name = options.model_dir.empty() ? options.arch : options.model_dir;
  const auto prompt = RandomPrompt(options.context, runtime->config().vocab_size, 1);

  // The first run fills the store and warms up; the second sets the scale of the link speeds.
  double compute_s = 0;
  for (int i = 0; i < 2; ++i) {
    ASSIGN_OR_RETURN(const Completion done,
                     RunCold(*runtime, prompt, Policy::kCompute, kAnswerTokens, /*store=*/true));
    compute_s = done.ttft_s;
  }

  fmt::print("{}, {} threads; {}, {} tokens, {} repeats, medians\n", CpuName(),
             runtime->threads().size(), name, options.context, options.repeats);
  fmt::print("{:>12} {:>11} {:>9} {:>9} {:>9} {:>9} {:>11} {:>10} {:>8}\n", "load/compute",
             "link MB/s", "compute", "load", "cake", "bound", "efficiency", "vs better", "meet at");
  std::vector<Cell> cells;
  for (double ratio : options.ratios) {
    ASSIGN_OR_RETURN(const Cell cell,
                     MeasureCell(*runtime, prompt, ratio, compute_s, options.repeats));
    fmt::print(
        "{:>12g} {:>11.1f} {:>8.3f}s {:>8.3f}s {:>8.3f}s {:>8.3f}s {:>10.1f}% {:>9.2f}x {:>8}\n",
        ratio, cell.rate_bytes_per_s / 1e6, cell.ttft(Policy::kCompute), cell.ttft(Policy::kLoad),
        cell.ttft(Policy::kCake), cell.bound(), 100 * cell.efficiency(), cell.against_better(),
        cell.meeting_token);
    std::fflush(stdout);
    cells.push_back(cell);
  }
  if (!options.json.empty()) {
    RETURN_IF_ERROR(WriteJson(options.json, ToJson(cells, name, options)));
  }
  if (!options.svg.empty()) {
    const std::string title =
        fmt::format("time to first token, {} at {} tokens", name, options.context);
    RETURN_IF_ERROR(WriteFile(options.svg, Draw(cells, title)));
    fmt::print("picture: {}\n", options.svg);
  }
  return {};
}

}  // namespace kvcake::bench
