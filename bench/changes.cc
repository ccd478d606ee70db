// How close to the bound is a restoration when speeds change while it runs? Links follow a trace;
// compute gets a share of each step that does, the rest of it filled with others' prefill. Every
// run starts anew, on what the planner learnt at the speeds of the start.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "base/check.h"
#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/bound.h"
#include "bench/harness.h"
#include "bench/scratch_dir.h"
#include "bench/shared_steps.h"

namespace kvcake::bench {
namespace {

constexpr int kProbeChunks = 8;
constexpr double kStill = 1e-6;  // of the link's rate, which must be positive

enum class Change { kHalved, kDoubled, kStops, kRamp, kBursts, kRandom };

struct Row {
  const char* name;
  std::optional<Change> link = {};
  std::optional<Change> compute = {};
  bool known = true;  // what the lanes take at the start; false: as on a new machine
};
constexpr Row kRows[] = {
    {.name = "nothing"},
    {.name = "nothing, first run", .known = false},
    {.name = "link halved", .link = Change::kHalved},
    {.name = "link doubled", .link = Change::kDoubled},
    {.name = "link stops for a while", .link = Change::kStops},
    {.name = "link ramps down to a fifth", .link = Change::kRamp},
    {.name = "link in bursts", .link = Change::kBursts},
    {.name = "link random", .link = Change::kRandom},
    {.name = "compute halved", .compute = Change::kHalved},
    {.name = "compute doubled", .compute = Change::kDoubled},
    {.name = "compute stops for a while", .compute = Change::kStops},
    {.name = "compute random", .compute = Change::kRandom},
    {.name = "both random", .link = Change::kRandom, .compute = Change::kRandom},
};

// Draws speeds up to `most` for work that takes about span_s at speed 1; random ones hold for
// every_s.
std::vector<SpeedPoint> Draw(Change shape, double span_s, double most, double every_s,
                             uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<SpeedPoint> points = {{0, 1}};
  switch (shape) {
    case Change::kHalved:
      return {{0, 1}, {0.4 * span_s, 0.5}};
    case Change::kDoubled:
      return {{0, most / 2}, {0.4 * span_s, most}};
    case Change::kStops:
      return {{0, 1}, {0.3 * span_s, 0}, {0.7 * span_s, 1}};
    case Change::kRamp:
      for (int i = 1; i <= 16; ++i) points.push_back({i * span_s / 16, 1 - 0.05 * i});
      return points;
    case Change::kBursts:
      for (double s = 0; s < 8 * span_s;) {
        s += span_s * (0.05 + 0.25 * uniform(rng));
        points.push_back({s, points.back().speed == 1 ? 0.25 : 1});
      }
      points.push_back({9 * span_s, 1});
      return points;
    case Change::kRandom:  // as the paper draws rates and budgets
      points[0].speed = most * uniform(rng);
      for (double s = every_s; s < 8 * span_s; s += every_s) {
        points.push_back({s, most * uniform(rng)});
      }
      points.push_back({8 * span_s, most / 2});
      return points;
  }
  CHECK(!"a shape");
}

struct Measured {
  std::vector<double> compute_s, load_s, published_s, static_s, cake_s, bound_s;

  double Efficiency(const std::vector<double>& seconds) const {
    std::vector<double> shares;
    for (size_t i = 0; i < seconds.size(); ++i) shares.push_back(bound_s[i] / seconds[i]);
    return Median(std::move(shares));
  }
  double AgainstBetter() const {
    std::vector<double> ratios;
    for (size_t i = 0; i < cake_s.size(); ++i) {
      ratios.push_back(cake_s[i] / std::min(compute_s[i], load_s[i]));
    }
    return Median(std::move(ratios));
  }
};

class ChangesBench {
 public:
  static Result<ChangesBench> Create(const ChangesOptions& options);

  Result<Measured> Measure(const Row& row);

 private:
  // The speeds of one repeat.
  struct Speeds {
    bool known = true;
    std::string link_trace = {};             // file
    std::optional<SpeedTrace> compute = {};  // shares
    double link_at_start = 1, compute_at_start = 1;
  };
  // What a run has at these speeds.
  struct Machine {
    std::unique_ptr<Runtime> runtime;
    std::unique_ptr<SharedSteps> shared;  // may be null

    Runtime* operator->() const { return runtime.get(); }
    Runtime& operator*() const { return *runtime; }
  };

  ChangesBench() = default;
  Result<Machine> Open(const Speeds& speeds) const;
  Result<Speeds> Draw(const Row& row, int repeat) const;
  Result<Completion> Run(const Speeds& speeds, Policy policy, std::optional<int> split = {});
  Status Probe(const Speeds& speeds) const;
  Status ForgetCosts() const;
  int SplitAtStart(const Speeds& speeds) const;
  int chunks() const { return static_cast<int>(compute_.size()) - 1; }

  ChangesOptions options_;
  ScratchDir scratch_;
  std::string model_dir_;
  std::vector<int32_t> prompt_, probe_prompt_;
  std::vector<int32_t> answer_;  // every run's
  LaneCurve compute_;            // alone, at full speed
  double rate_bytes_per_s_ = 0;  // of the link, at speed 1
  double chunk_s_ = 0;           // on it
};

Result<ChangesBench::Machine> ChangesBench::Open(const Speeds& speeds) const {
  StoreOptions store{.dir = scratch_.path() + "/store"};
  if (rate_bytes_per_s_ > 0) {
    store.load_rate_bytes_per_s = rate_bytes_per_s_ * speeds.link_at_start;
    store.load_trace = speeds.link_trace;
  }
  Machine machine;
  ASSIGN_OR_RETURN(machine.runtime, Runtime::Create({.model_dir = model_dir_,
                                                     .stores = {std::move(store)},
                                                     .threads = options_.threads}));
  ASSIGN_OR_RETURN(machine.shared, SharedSteps::Install(*machine.runtime, speeds.compute));
  return machine;
}

Result<ChangesBench> ChangesBench::Create(const ChangesOptions& options) {
  ChangesBench bench;
  bench.options_ = options;
  ASSIGN_OR_RETURN(bench.model_dir_, ModelDirOf(options.model_dir, options.arch));
  ASSIGN_OR_RETURN(bench.scratch_, ScratchDir::Make(options.dir, "bench-changes"));
  ASSIGN_OR_RETURN(const auto runtime, bench.Open({}));
  const int chunk_tokens = runtime->options().chunk_tokens;
  if (options.context < kProbeChunks * chunk_tokens) {
    return Fail(ErrorCode::kInvalidArgument, "--context {} is too short: at least {} tokens",
                options.context, kProbeChunks * chunk_tokens);
  }
  const int vocab = runtime->config().vocab_size;
  bench.prompt_ = RandomPrompt(options.context, vocab, 1);
  bench.probe_prompt_ = RandomPrompt(kProbeChunks * chunk_tokens, vocab, 2);
  RETURN_IF_ERROR(RunCold(*runtime, bench.probe_prompt_, Policy::kCompute, 1, /*store=*/true)
                      .map([](const auto&) {}));
  // The first run warms up and fills the store; the second one is measured.
  for (bool store : {true, false}) {
    ASSIGN_OR_RETURN(const Completion done,
                     RunCold(*runtime, bench.prompt_, Policy::kCompute, kAnswerTokens, store));
    bench.answer_ = done.tokens;
    bench.compute_ = ComputeCurve(done.report, runtime->compute_cost().fit());
  }
  bench.chunk_s_ = options.ratio * bench.compute_.back() / bench.chunks();
  bench.rate_bytes_per_s_ =
      static_cast<double>(runtime->pool().layout().page_bytes()) / bench.chunk_s_;
  return bench;
}

Result<ChangesBench::Speeds> ChangesBench::Draw(const Row& row, int repeat) const {
  Speeds speeds{.known = row.known};
  // Both lanes at speed 1 take about this long together.
  const double compute_s = compute_.back(), load_s = options_.ratio * compute_s;
  const double span_s = compute_s * load_s / (compute_s + load_s);
  if (row.compute) {
    // A step takes the share of its beginning, and there are few steps: shorter pieces would give
    // each run, which begins them at other moments, another machine.
    const auto points = bench::Draw(*row.compute, span_s, 1, span_s / 4, 2 * repeat);
    speeds.compute_at_start = std::max(points[0].speed, kStill);
    speeds.compute = SpeedTrace(points);
  }
  if (!row.link) return speeds;
  const auto points = bench::Draw(*row.link, span_s, 2, span_s / 10, 2 * repeat + 1);
  speeds.link_at_start = std::max(points[0].speed, kStill);
  speeds.link_trace = scratch_.path() + "/link.trace";
  std::string text;
  for (const SpeedPoint& point : points) {
    text += fmt::format("{} {} 0\n", point.at_s, rate_bytes_per_s_ * std::max(point.speed, kStill));
  }
  RETURN_IF_ERROR(WriteFile(speeds.link_trace, text));
  return speeds;
}

// Teaches the planner what the lanes take before anything changes, or has it forget that.
Status ChangesBench::Probe(const Speeds& speeds) const {
  if (!speeds.known) return ForgetCosts();
  ASSIGN_OR_RETURN(const auto runtime, Open({.link_at_start = speeds.link_at_start}));
  for (Policy policy : {Policy::kCompute, Policy::kLoad}) {
    RETURN_IF_ERROR(
        RunCold(*runtime, probe_prompt_, policy, 1, /*store=*/false).map([](const auto&) {}));
  }
  return {};
}

Result<Completion> ChangesBench::Run(const Speeds& speeds, Policy policy,
                                     std::optional<int> split) {
  // The others ask nobody what anything takes.
  if (policy == Policy::kCake && !split) RETURN_IF_ERROR(Probe(speeds));
  ASSIGN_OR_RETURN(const auto runtime, Open(speeds));
  ASSIGN_OR_RETURN(Completion done, runtime->engine().Answer({.prompt = prompt_,
                                                              .max_tokens = kAnswerTokens,
                                                              .store = false,
                                                              .policy = policy,
                                                              .forced_split = split}));
  if (done.tokens == answer_) return done;
  return Fail(ErrorCode::kCorrupt, "policy {} gave another answer than computing",
              PolicyName(policy));
}

Status ChangesBench::ForgetCosts() const {
  std::error_code error;
  for (const auto& file : std::filesystem::recursive_directory_iterator(scratch_.path(), error)) {
    if (file.path().filename().string().starts_with("cost-")) {
      std::filesystem::remove(file.path(), error);
    }
  }
  if (!error) return {};
  return Fail(ErrorCode::kIo, "cannot forget the costs in {}: {}", scratch_.path(),
              error.message());
}

// What somebody would choose who thought that nothing will change.
int ChangesBench::SplitAtStart(const Speeds& speeds) const {
  LaneCurve compute = compute_, load = {0};
  for (double& s : compute) s /= speeds.compute_at_start;
  for (int i = 1; i <= chunks(); ++i) load.push_back(i * chunk_s_ / speeds.link_at_start);
  return LeastTime(compute, load, std::vector<bool>(chunks(), true), 0).split;
}

Result<Measured> ChangesBench::Measure(const Row& row) {
  Measured measured;
  for (int repeat = 0; repeat < options_.repeats; ++repeat) {
    ASSIGN_OR_RETURN(const Speeds speeds, Draw(row, repeat));
    ASSIGN_OR_RETURN(const Completion compute, Run(speeds, Policy::kCompute));
    ASSIGN_OR_RETURN(const Completion load, Run(speeds, Policy::kLoad));
    ASSIGN_OR_RETURN(const Completion published, Run(speeds, Policy::kPublished));
    ASSIGN_OR_RETURN(const Completion fixed, Run(speeds, Policy::kCake, SplitAtStart(speeds)));
    ASSIGN_OR_RETURN(const Completion cake, Run(speeds, Policy::kCake));
    ASSIGN_OR_RETURN(const LaneCurve loads, LoadCurve(load.report, chunks()));
    const double tail_s = std::max(load.ttft_s - loads[chunks()], 0.0);
    const Bound bound = LeastTime(ComputeCurve(compute.report, {}), loads,
                                  std::vector<bool>(chunks(), true), tail_s);
    measured.compute_s.push_back(compute.ttft_s);
    measured.load_s.push_back(load.ttft_s);
    measured.published_s.push_back(published.ttft_s);
    measured.static_s.push_back(fixed.ttft_s);
    measured.cake_s.push_back(cake.ttft_s);
    measured.bound_s.push_back(std::min(bound.whole_s, compute.ttft_s));
  }
  return measured;
}

}  // namespace

Status RunChanges(const ChangesOptions& options) {
  ASSIGN_OR_RETURN(ChangesBench bench, ChangesBench::Create(options));
  fmt::print("{}; {} at {} tokens, load / compute {} at speed 1; {} repeats, medians\n\n",
             CpuName(), options.model_dir.empty() ? options.arch : options.model_dir,
             options.context, options.ratio, options.repeats);
  fmt::print("{:<27} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8} {:>7} {:>9} {:>7} {:>7}\n", "", "compute",
             "load", "published", "static", "cake", "bound", "bound/", "the same,", "static", "vs");
  fmt::print("{:<27} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8} {:>7} {:>9} {:>7} {:>7}\n", "", "s", "s",
             "s", "s", "s", "s", "cake", "published", "", "better");
  auto json = nlohmann::ordered_json::array();
  double sum = 0, least = 1e9;
  for (const Row& row : kRows) {
    ASSIGN_OR_RETURN(const Measured m, bench.Measure(row));
    const double efficiency = m.Efficiency(m.cake_s);
    fmt::print(
        "{:<27} {:>8.3f} {:>8.3f} {:>9.3f} {:>8.3f} {:>8.3f} {:>8.3f} {:>7.3f} {:>9.3f} {:>7.3f} "
        "{:>6.3f}x\n",
        row.name, Median(m.compute_s), Median(m.load_s), Median(m.published_s), Median(m.static_s),
        Median(m.cake_s), Median(m.bound_s), efficiency, m.Efficiency(m.published_s),
        m.Efficiency(m.static_s), m.AgainstBetter());
    std::fflush(stdout);
    sum += efficiency;
    least = std::min(least, efficiency);
    json.push_back({{"change", row.name},
                    {"efficiency", efficiency},
                    {"efficiency_published", m.Efficiency(m.published_s)},
                    {"efficiency_static", m.Efficiency(m.static_s)},
                    {"against_better", m.AgainstBetter()},
                    {"cake_s", m.cake_s},
                    {"published_s", m.published_s},
                    {"static_s", m.static_s},
                    {"compute_s", m.compute_s},
                    {"load_s", m.load_s},
                    {"bound_s", m.bound_s},
                    {"cpu", CpuName()}});
    if (!options.json.empty()) RETURN_IF_ERROR(WriteJson(options.json, json));
  }
  fmt::print("\nbound/cake: mean {:.3f}, least {:.3f}; the bound is known with hindsight\n",
             sum / static_cast<double>(std::size(kRows)), least);
  return {};
}

}  // namespace kvcake::bench
