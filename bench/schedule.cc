// Does it pay that a restoration goes on by loading while others compute? One long prompt whose KV
// cache is stored, then a burst of short new ones, in both orders of prefill, over link speeds.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/crowd.h"
#include "bench/harness.h"
#include "bench/schedule_svg.h"
#include "bench/scratch_dir.h"

namespace kvcake::bench {
namespace {

constexpr std::array kSchedules = {Schedule::kFcfs, Schedule::kAdaptive};

// One request, by what its tokens' events said. Seconds from the submission of all.
struct ScheduledAnswer {
  std::vector<double> token_s = {};
  double first_s() const { return token_s.front(); }
};

struct Burst {
  std::vector<ScheduledAnswer> answers = {};  // the long prompt's first
  std::vector<StepRecord> steps = {};
  TimePoint began = {};
  double finish_s = 0;

  double LongestStep() const {
    Seconds longest{0};
    for (const StepRecord& step : steps) longest = std::max(longest, step.took);
    return longest.count();
  }
  double FreshTtft(double q) const {
    std::vector<double> first;
    for (size_t i = 1; i < answers.size(); ++i) first.push_back(answers[i].first_s());
    return Quantile(first, q);
  }
  double FreshItl() const {  // mean
    double sum = 0;
    int gaps = 0;
    for (size_t i = 1; i < answers.size(); ++i) {
      sum += answers[i].token_s.back() - answers[i].first_s();
      gaps += static_cast<int>(answers[i].token_s.size()) - 1;
    }
    return sum / std::max(1, gaps);
  }
  double FreshEnd() const {  // mean
    double sum = 0;
    for (size_t i = 1; i < answers.size(); ++i) sum += answers[i].token_s.back();
    return sum / static_cast<double>(answers.size() - 1);
  }
};

// The medians of one cell's repeats.
struct ScheduleCell {
  double ratio = 0, load_s = 0;
  std::array<std::vector<Burst>, kSchedules.size()> runs = {};  // by kSchedules

  template <typename Value>
  double Of(size_t schedule, Value of) const {
    std::vector<double> values;
    for (const Burst& run : runs[schedule]) values.push_back(of(run));
    return Median(std::move(values));
  }
};

class ScheduleBench {
 public:
  ScheduleBench(const ScheduleOptions& options, RuntimeOptions runtime)
      : options_(options), runtime_options_(std::move(runtime)) {}

  Status Run() {
    RETURN_IF_ERROR(Prepare());
    Head();
    for (const double ratio : options_.ratios) {
      ASSIGN_OR_RETURN(ScheduleCell cell, Measure(ratio));
      Print(cell);
      if (!best_ || Gain(cell) > Gain(*best_)) best_ = std::move(cell);
    }
    if (options_.crowds > 0) MeasureCrowds();
    RETURN_IF_ERROR(WriteFile(options_.svg, DrawBest()));
    fmt::print("picture: {}\n", options_.svg);
    return options_.json.empty() ? Status() : WriteJson(options_.json, json_);
  }

 private:
  Result<std::unique_ptr<Runtime>> Open(Schedule schedule, double load_s) const {
    RuntimeOptions options = runtime_options_;
    options.schedule = schedule;
    ASSIGN_OR_RETURN(auto runtime, Runtime::Create(options));
    const int chunk = options.chunk_tokens;
    const double bytes =
        static_cast<double>(runtime->pool().layout().page_bytes()) * (options_.context / chunk);
    runtime->link()->SetRate(bytes / load_s);
    return runtime;
  }

  // The long prompt into the store; what computing it takes.
  Status Prepare() {
    ASSIGN_OR_RETURN(const auto runtime, Open(Schedule::kFcfs, 1e-3));
    const int room = runtime->model().max_positions();
    const int longest = std::max(options_.context, options_.longest);
    if (longest > room - options_.answer_tokens) {
      return Fail(ErrorCode::kInvalidArgument,
                  "--context {} and --answer-tokens {}: the longest prompt ({} tokens) and its "
                  "answer are more than the model's {} tokens",
                  options_.context, options_.answer_tokens, longest, room);
    }
    const int vocab = runtime->model().vocab_size();
    prompts_.push_back(RandomPrompt(options_.context, vocab, 1));
    std::mt19937_64 rng(2);
    for (int i = 0; i < options_.burst; ++i) {
      std::uniform_int_distribution<int> length(options_.shortest, options_.longest);
      prompts_.push_back(RandomPrompt(length(rng), vocab, 3 + i));
    }
    // The first run fills the store and warms up.
    for (int i = 0; i < 2; ++i) {
      ASSIGN_OR_RETURN(const Completion done, RunCold(*runtime, prompts_[0], Policy::kCompute, 1,
                                                      /*store=*/i == 0));
      compute_s_ = done.ttft_s;
    }
    gbit_per_ratio_ = 8e-9 * options_.context * KvBytesPerToken(*runtime) / compute_s_;
    fmt::print(
        "{}; {}: {} stored tokens, which take {:.2f} s to compute, then {} new prompts of {} "
        "to {}, {} tokens each; {} repeats, medians\n",
        CpuName(), Name(), options_.context, compute_s_, options_.burst, options_.shortest,
        options_.longest, options_.answer_tokens, options_.repeats);
    return {};
  }
  std::string Name() const {
    return runtime_options_.emulate.empty() ? runtime_options_.model_dir : runtime_options_.emulate;
  }
  // What the machine itself would hold: an emulated one's pages are smaller than what they stand
  // for.
  static double KvBytesPerToken(Runtime& runtime) {
    if (const auto& profile = runtime.profile())
      return static_cast<double>(profile->kv_bytes_per_token);
    return static_cast<double>(runtime.pool().layout().page_bytes()) /
           runtime.options().chunk_tokens;
  }

  Result<ScheduleCell> Measure(double ratio) {
    ScheduleCell cell{.ratio = ratio};
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      for (size_t s = 0; s < kSchedules.size(); ++s) {
        ASSIGN_OR_RETURN(const auto runtime, Open(kSchedules[s], ratio * compute_s_));
        // The link's speed is known, as it is in use; and what loading alone takes.
        ASSIGN_OR_RETURN(const Completion load, RunCold(*runtime, prompts_[0], Policy::kLoad, 1,
                                                        /*store=*/false));
        cell.load_s = repeat == 0 && s == 0 ? load.ttft_s : std::min(cell.load_s, load.ttft_s);
        ASSIGN_OR_RETURN(Burst run, RunBurst(*runtime));
        cell.runs[s].push_back(std::move(run));
      }
    }
    return cell;
  }

  Result<Burst> RunBurst(Runtime& runtime) {
    EmptyMemory(runtime);
    Burst run;
    Engine& engine = runtime.engine();
    engine.SetStepObserver([&](const StepRecord& step) { run.steps.push_back(step); });
    const TimePoint began = run.began = Clock::Real().Now();
    run.answers.resize(prompts_.size());
    std::vector<std::vector<int32_t>> tokens(prompts_.size());
    for (size_t i = 0; i < prompts_.size(); ++i) {
      Request request{.prompt = prompts_[i], .max_tokens = options_.answer_tokens};
      request.store = false;
      request.on_token = [&run, &tokens, i, began](const TokenEvent& event) {
        run.answers[i].token_s.push_back((Clock::Real().Now() - began).count());
        tokens[i].push_back(event.token);
        return true;
      };
      RETURN_IF_ERROR(engine.Submit(std::move(request)).map([](auto) {}));
    }
    for (bool more = true; more;) {
      ASSIGN_OR_RETURN(more, engine.Step());
    }
    engine.SetStepObserver({});
    while (engine.TakeAny()) {
    }
    run.finish_s = (Clock::Real().Now() - began).count();
    if (tokens_.empty()) tokens_ = tokens;
    if (tokens != tokens_) {
      return Fail(ErrorCode::kCorrupt, "an order of prefill has given another answer");
    }
    return run;
  }

  double Gain(const ScheduleCell& cell) const {
    const auto finish = [](const Burst& run) { return run.finish_s; };
    return cell.Of(0, finish) / cell.Of(1, finish) - 1;
  }

  void Head() const {
    fmt::print("{:>7} {:>7} | {:^23} | {:^15} | {:^15} | {:^15} | {:^15} | {:^24}\n", "load /",
               "link", "finish, s", "fresh TTFT, s", "its p95", "fresh ITL, ms", "fresh end, s",
               "restored TTFT, s");
    fmt::print("{:>7} {:>7} | {:>7} {:>8} {:>6} |", "compute", "Gbit/s", "fcfs", "adaptive",
               "gain");
    for (int i = 0; i < 4; ++i) fmt::print(" {:>6} {:>8} |", "fcfs", "adaptive");
    fmt::print(" {:>6} {:>8} {:>8}\n", "fcfs", "adaptive", "at most");
  }

  void Print(const ScheduleCell& cell) {
    const auto both = [&](auto of) { return std::pair(cell.Of(0, of), cell.Of(1, of)); };
    const auto finish = both([](const Burst& r) { return r.finish_s; });
    const auto ttft = both([](const Burst& r) { return r.FreshTtft(0.5); });
    const auto p95 = both([](const Burst& r) { return r.FreshTtft(0.95); });
    const auto itl = both([](const Burst& r) { return 1e3 * r.FreshItl(); });
    const auto end = both([](const Burst& r) { return r.FreshEnd(); });
    const auto slow = both([](const Burst& r) { return r.answers[0].first_s(); });
    const auto step = both([](const Burst& r) { return r.LongestStep(); });
    fmt::print("{:>7} {:>7.1f} | {:>7.3f} {:>8.3f} {:>5.1f}% |", cell.ratio,
               gbit_per_ratio_ / cell.ratio, finish.first, finish.second, 100 * Gain(cell));
    for (const auto& [fcfs, adaptive] : {ttft, p95})
      fmt::print(" {:>6.3f} {:>8.3f} |", fcfs, adaptive);
    fmt::print(" {:>6.1f} {:>8.1f} | {:>6.3f} {:>8.3f} |", itl.first, itl.second, end.first,
               end.second);
    // The goal: loading alone, and one step.
    fmt::print(" {:>6.3f} {:>8.3f} {:>8.3f}\n", slow.first, slow.second, cell.load_s + step.second);
    for (size_t s = 0; s < kSchedules.size(); ++s) {
      const auto pick = [&](const std::pair<double, double>& p) {
        return s == 0 ? p.first : p.second;
      };
      json_["cells"].push_back({{"schedule", ScheduleName(kSchedules[s])},
                                {"ratio", cell.ratio},
                                {"gbit_per_s", gbit_per_ratio_ / cell.ratio},
                                {"load_only_s", cell.load_s},
                                {"finish_s", pick(finish)},
                                {"fresh_ttft_s_p50", pick(ttft)},
                                {"fresh_ttft_s_p95", pick(p95)},
                                {"fresh_itl_ms", pick(itl)},
                                {"fresh_end_s", pick(end)},
                                {"restored_ttft_s", pick(slow)},
                                {"longest_step_s", pick(step)}});
    }
  }

  void MeasureCrowds() {
    fmt::print("\n2 to 8 restorations at once on one link, {} random crowds on a fake clock:\n",
               options_.crowds);
    fmt::print("{:<6} {:>22} {:>22}\n", "order", "bound / last (least)", "bound / mean (least)");
    for (const LoadOrder order : {LoadOrder::kSrpt, LoadOrder::kFifo, LoadOrder::kFair}) {
      double total = 0, mean = 0, total_least = 1, mean_least = 1;
      for (int i = 0; i < options_.crowds; ++i) {
        const Crowd crowd = RandomCrowd(i);
        const CrowdTimes least = LeastTimes(crowd), times = RunCrowd(crowd, order);
        total += least.total_s / times.total_s / options_.crowds;
        mean += least.mean_s / times.mean_s / options_.crowds;
        total_least = std::min(total_least, least.total_s / times.total_s);
        mean_least = std::min(mean_least, least.mean_s / times.mean_s);
      }
      fmt::print("{:<6} {:>13.3f} ({:.3f}) {:>14.3f} ({:.3f})\n", LoadOrderName(order), total,
                 total_least, mean, mean_least);
      json_["crowds"].push_back({{"load_order", LoadOrderName(order)},
                                 {"bound_over_last", total},
                                 {"bound_over_last_least", total_least},
                                 {"bound_over_mean", mean},
                                 {"bound_over_mean_least", mean_least}});
    }
  }

  std::string DrawBest() const {
    std::vector<StepPanel> panels;
    for (size_t s = 0; s < kSchedules.size(); ++s) {
      const Burst& run = best_->runs[s].back();
      panels.push_back(
          {.title = fmt::format("{}: {:.2f} s", ScheduleName(kSchedules[s]), run.finish_s),
           .began = run.began,
           .restored_s = run.answers[0].first_s(),
           .steps = run.steps});
    }
    return DrawSteps(fmt::format("Tokens of each step, load / compute {}", best_->ratio), panels);
  }

  const ScheduleOptions& options_;
  const RuntimeOptions runtime_options_;
  std::vector<std::vector<int32_t>> prompts_;  // the long one first
  std::vector<std::vector<int32_t>> tokens_;   // every run's
  double compute_s_ = 0, gbit_per_ratio_ = 0;
  std::optional<ScheduleCell> best_;
  nlohmann::ordered_json json_;
};

}  // namespace

Status RunSchedule(const ScheduleOptions& options) {
  RuntimeOptions runtime = options.runtime;
  if (runtime.model_dir.empty() && options.arch.empty()) {
    runtime.emulate = options.emulate;
  } else {
    ASSIGN_OR_RETURN(runtime.model_dir, ModelDirOf(runtime.model_dir, options.arch));
  }
  ASSIGN_OR_RETURN(const ScratchDir dir, ScratchDir::Make("", "schedule"));
  runtime.stores = {{.dir = dir.path(), .load_rate_bytes_per_s = 1e9}};
  runtime.max_sequences = std::max(runtime.max_sequences, options.burst + 1);
  return ScheduleBench(options, runtime).Run();
}

}  // namespace kvcake::bench
