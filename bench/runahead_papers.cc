// KV-Runahead's tables again, on emulated GPUs that were fitted to its baseline
// (bench/profiles/kvr): the chain's times were not in the fit.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/mutex.h"
#include "bench/csv.h"
#include "bench/emulated_ranks.h"
#include "bench/harness.h"
#include "bench/runahead.h"
#include "bench/runahead_cell.h"
#include "bench/runahead_svg.h"
#include "bench/simulate_scenario.h"
#include "runahead/chain_model.h"
#include "runahead/chain_planner.h"
#include "runahead/partition_analytic.h"

namespace kvcake::bench {
namespace {

constexpr double kPaperLink = 300e9;  // bytes/s, of tables 1 and 2
constexpr const char* kLlama = "Llama 7B";
// A prompt takes at least as long: short ones have as many messages.
constexpr double kLeastS = 2;

class PapersBench {
 public:
  explicit PapersBench(const RunaheadPapersOptions& options) : options_(options) {}

  Status Run() {
    const bool has_llama = options_.model.empty() || options_.model == kLlama;
    if (!options_.timeline.empty() && !has_llama) {
      return Fail(ErrorCode::kInvalidArgument, "--timeline is of {}, which --only {} leaves out",
                  kLlama, options_.model);
    }
    ASSIGN_OR_RETURN(const auto list, LoadEmulatedProfiles(options_.profiles));
    for (const EmulatedProfile& profile : list) profiles_[profile.name] = profile;
    RETURN_IF_ERROR(Lengths());
    if (has_llama) {
      RETURN_IF_ERROR(SlowLinks());
      RETURN_IF_ERROR(NoisyLinks());
      RETURN_IF_ERROR(SlowRank());
      if (!options_.timeline.empty()) RETURN_IF_ERROR(Timeline());
    }
    if (!options_.svg.empty()) RETURN_IF_ERROR(WriteFile(options_.svg, picture_.Draw()));
    return options_.json.empty() ? Status() : WriteJson(options_.json, json_);
  }

 private:
  Result<EmulatedRanksOptions> RanksOf(const std::string& model, int ranks, int tokens,
                                       double bytes_per_s) {
    const auto profile = profiles_.find(model + " on A100, a rank of several");
    if (profile == profiles_.end()) {
      return Fail(ErrorCode::kNotFound, "{} has no profile of {}", options_.profiles, model);
    }
    const ChainCost cost = ChainCostOf(profile->second, ranks, bytes_per_s);
    const double even_s = PredictChain(cost, EvenPartition(tokens, ranks)).ttft_s;
    return EmulatedRanksOptions{.profile = profile->second,
                                .ranks = ranks,
                                .link = cost.link,
                                .slow_motion = std::max(options_.slow_motion, kLeastS / even_s)};
  }

  Result<std::vector<MethodResult>> Cell(const std::string& setting, const std::string& model,
                                         EmulatedRanks& ranks, int tokens,
                                         std::vector<RankMethodPlan> plans,
                                         const CellOptions& options) {
    const auto prompt = RandomPrompt(tokens, ranks.trial().vocab_size(), tokens);
    ASSIGN_OR_RETURN(auto results, MeasureCell(ranks.trial(), std::move(plans), prompt, options));
    names_ = {.setting = setting,
              .model = model,
              .attention = "dense",
              .tokens = tokens,
              .ranks = ranks.trial().ranks()};
    AddJson(names_, results, &json_);
    return results;
  }

  static Partition PlannedOf(const EmulatedRanks& ranks, int tokens) {
    return PlannedPartition(ranks.cost(), tokens, EmulatedRanks::kChunkTokens);
  }
  std::string Drawn() const { return options_.model.empty() ? kLlama : options_.model; }

  // Tables 1 and 2.
  Status Lengths() {
    ASSIGN_OR_RETURN(const auto rows, ReadCsv(options_.tables + "/kvr_ttft.csv"));
    fmt::print(
        "Tables 1 and 2: emulated A100s, dense attention, links of {:g} GB/s, medians of {} "
        "(seconds)\n{:<14} {:>6} {:>5} | {:>7} {:>7} | {:>7} {:>7} {:>7} {:>7} | {:>6} {:>6} | "
        "{:>6} {:>6}  {}\n",
        kPaperLink / 1e9, options_.repeats, "model", "tokens", "ranks", "tsp", "paper", "kvr",
        "paper", "kvr-e", "zigzag", "x tsp", "paper", "above", "single", "partition");
    double ours = 0, papers = 0, off = 0;
    int cells = 0;
    for (const CsvRow& row : rows) {
      const std::string model = Text(row, "model", "");
      if (!options_.model.empty() && model != options_.model) continue;
      ASSIGN_OR_RETURN(const double tokens, Number(row, "tokens"));
      ASSIGN_OR_RETURN(const double gpus, Number(row, "gpus"));
      ASSIGN_OR_RETURN(const double paper_tsp_s, Number(row, "tsp_s"));
      ASSIGN_OR_RETURN(const double paper_kvr_s, Number(row, "kvr_s"));
      const int length = static_cast<int>(tokens);
      ASSIGN_OR_RETURN(auto setup, RanksOf(model, static_cast<int>(gpus), length, kPaperLink));
      EmulatedRanks ranks(std::move(setup));
      ASSIGN_OR_RETURN(const auto results,
                       Cell("emulated", model, ranks, length, PlansWith(PlannedOf(ranks, length)),
                            {.repeats = options_.repeats, .bound_repeats = 1, .single = false}));
      const MethodResult& kvr = *FindMethod(results, "kvr");
      const double tsp_s = FindMethod(results, "tsp")->ttft(), kvr_s = kvr.ttft();
      ++cells;
      ours += tsp_s / kvr_s;
      papers += paper_tsp_s / paper_kvr_s;
      off += std::abs(kvr_s / paper_kvr_s - 1);
      fmt::print(
          "{:<14} {:>6} {:>5} | {:>7.3f} {:>7.3f} | {:>7.3f} {:>7.3f} {:>7.3f} {:>7.3f} | "
          "{:>5.2f}x {:>5.2f}x | {:>5.1f}% {:>6.3f}  {}\n",
          model, tokens, gpus, tsp_s, paper_tsp_s, kvr_s, paper_kvr_s,
          FindMethod(results, "kvr-e")->ttft(), FindMethod(results, "zigzag")->ttft(),
          tsp_s / kvr_s, paper_tsp_s / paper_kvr_s, 100 * (kvr_s / kvr.bound() - 1),
          PredictChain(ranks.cost().Last(1), EvenPartition(length, 1)).ttft_s,
          FormatPartition(kvr.method.partition));
      if (model == Drawn() && gpus == 4) picture_.Add(names_, results);
    }
    if (cells == 0) {
      return Fail(ErrorCode::kNotFound, "the paper's tables have no model '{}'", options_.model);
    }
    fmt::print(
        "mean of {} cells: kvr {:.3f}x of tsp, the paper's {:.3f}x; kvr is {:.1f}% off the "
        "paper's seconds\n\n",
        cells, ours / cells, papers / cells, 100 * off / cells);
    return {};
  }

  // Table 3.
  Status SlowLinks() {
    ASSIGN_OR_RETURN(const auto rows, ReadCsv(options_.tables + "/kvr_bandwidth.csv"));
    fmt::print("Table 3: {} on slow links (seconds)\n{:>6} {:>6} {:>5} | {:>7} {:>7} | {:>9}  {}\n",
               kLlama, "tokens", "GB/s", "ranks", "kvr", "paper", "predicted", "ranks that pay");
    for (const CsvRow& row : rows) {
      if (Text(row, "gbyte_per_s", "").empty()) continue;  // one GPU
      ASSIGN_OR_RETURN(const double tokens, Number(row, "tokens"));
      ASSIGN_OR_RETURN(const double gpus, Number(row, "gpus"));
      ASSIGN_OR_RETURN(const double rate, Number(row, "gbyte_per_s"));
      ASSIGN_OR_RETURN(const double paper_s, Number(row, "ttft_s"));
      const int length = static_cast<int>(tokens);
      ASSIGN_OR_RETURN(auto setup, RanksOf(kLlama, static_cast<int>(gpus), length, rate * 1e9));
      EmulatedRanks ranks(std::move(setup));
      ASSIGN_OR_RETURN(const auto results,
                       Cell(fmt::format("emulated, {:g} GB/s", rate), kLlama, ranks, length,
                            {{"kvr", RankMethod::kChain, PlannedOf(ranks, length)}},
                            {.repeats = options_.repeats, .bound_repeats = 1, .single = false}));
      const MethodResult& kvr = *FindMethod(results, "kvr");
      const RanksChoice choice =
          BestRanks(ranks.cost(), length, {.chunk_tokens = EmulatedRanks::kChunkTokens});
      fmt::print("{:>6} {:>6} {:>5} | {:>7.3f} {:>7.3f} | {:>9.3f}  {} of {}\n", tokens, rate, gpus,
                 kvr.ttft(), paper_s, PredictChain(ranks.cost(), kvr.method.partition).ttft_s,
                 choice.partition.ranks(), gpus);
    }
    fmt::print("\n");
    return {};
  }

  // Partitions are those of the quiet network.
  Status NoisyLinks() {
    constexpr int kRanks = 4;
    fmt::print(
        "Noisy links: {} on {}; again and again a random pair of neighbours has {:g} ms of other "
        "traffic, in both directions, and 1/{:g} of its {:g} GB/s\n{:>7} | {:>8} {:>8} "
        "{:>6} | {:>8} {:>8} {:>6} | {:>8} {:>8} {:>6}\n",
        kLlama, kRanks, 1e3 * options_.noise.burst_mean.count(), options_.noise.slowdown,
        kPaperLink / 1e9, "tokens", "tsp", "noisy", "", "zigzag", "noisy", "", "kvr", "noisy", "");
    std::map<std::string, double> slower;
    const std::vector<int> lengths = {8192, 12288, 16384};
    for (const int tokens : lengths) {
      const CellOptions cell{.repeats = options_.repeats, .bound_repeats = 0, .single = false};
      std::vector<MethodResult> of[2];
      for (const bool noisy : {false, true}) {
        ASSIGN_OR_RETURN(auto setup, RanksOf(kLlama, kRanks, tokens, kPaperLink));
        if (noisy) setup.noise = options_.noise;
        EmulatedRanks ranks(std::move(setup));
        ASSIGN_OR_RETURN(of[noisy], Cell(noisy ? "emulated, noisy" : "emulated, quiet", kLlama,
                                         ranks, tokens, PlansWith(PlannedOf(ranks, tokens)), cell));
      }
      fmt::print("{:>7}", tokens);
      for (const char* method : {"tsp", "zigzag", "kvr"}) {
        const double quiet_s = FindMethod(of[0], method)->ttft();
        const double noisy_s = FindMethod(of[1], method)->ttft();
        slower[method] += (noisy_s / quiet_s - 1) / static_cast<double>(lengths.size());
        fmt::print(" | {:>8.3f} {:>8.3f} {:>5.1f}%", quiet_s, noisy_s,
                   100 * (noisy_s / quiet_s - 1));
      }
      fmt::print("\n");
    }
    fmt::print("mean slow-down: tsp {:.1f}%, zigzag {:.1f}%, kvr {:.1f}%\n\n", 100 * slower["tsp"],
               100 * slower["zigzag"], 100 * slower["kvr"]);
    return {};
  }

  // The planner that `kvcake run --ranks` has learns the ranks' speeds from prompt to prompt; the
  // fixed partition is that of equal ranks, as a table would have it.
  Status SlowRank() {
    constexpr int kRanks = 4, kTokens = 8192, kPrompts = 5;
    ASSIGN_OR_RETURN(auto setup, RanksOf(kLlama, kRanks, kTokens, kPaperLink));
    const EmulatedProfile profile = setup.profile;
    const ChainCost equal = ChainCostOf(profile, kRanks, kPaperLink);
    setup.speeds = {1, options_.slow_rank_speed, 1, 1};
    EmulatedRanks ranks(std::move(setup));
    const int chunk = EmulatedRanks::kChunkTokens;
    const Partition fixed = PlannedPartition(equal, kTokens, chunk);
    ASSIGN_OR_RETURN(const auto planner,
                     NewChainPlanner({.chunk_tokens = chunk,
                                      .layers = equal.layers,
                                      .bytes_per_token_layer = equal.bytes_per_token_layer,
                                      .link = equal.link,
                                      .time = [&profile] { return profile.time(); }}));
    const auto prompt = RandomPrompt(kTokens, ranks.trial().vocab_size(), kTokens);
    fmt::print("A slow rank: {}, {} tokens on {}, the second at {:g} of its speed\n", kLlama,
               kTokens, kRanks, options_.slow_rank_speed);
    std::vector<double> fixed_s;
    for (int i = 0; i < kPrompts; ++i) {
      ASSIGN_OR_RETURN(const RankRun run, ranks.trial().Several(prompt, RankMethod::kChain, fixed));
      fixed_s.push_back(run.ttft_s);
    }
    fmt::print("fixed: {:.3f} s with {}\n", Median(fixed_s), FormatPartition(fixed));
    for (int i = 0; i < kPrompts; ++i) {
      const auto partition = planner->Plan(0, kTokens, kRanks);
      if (!partition || partition->ranks() != kRanks) {
        return Fail(ErrorCode::kCorrupt, "the planner leaves ranks out of {} tokens", kTokens);
      }
      ASSIGN_OR_RETURN(const RankRun run,
                       ranks.trial().Several(prompt, RankMethod::kChain, *partition));
      planner->Learn({.tokens = prompt, .partition = *partition}, run.ranks);
      fmt::print("planned, prompt {}: {:.3f} s with {}\n", i + 1, run.ttft_s,
                 FormatPartition(*partition));
      json_.push_back({{"setting", fmt::format("emulated, slow rank, prompt {}", i + 1)},
                       {"model", kLlama},
                       {"tokens", kTokens},
                       {"ranks", kRanks},
                       {"method", "kvr"},
                       {"attention", "dense"},
                       {"bounds", partition->bounds},
                       {"ttft_s", run.ttft_s},
                       {"bound_s", run.compute_most_s},
                       {"sent_bytes", run.sent_bytes},
                       {"repeats", {run.ttft_s}}});
    }
    fmt::print("\n");
    return {};
  }

  Status Timeline() {
    constexpr int kRanks = 4, kTokens = 8192;
    ASSIGN_OR_RETURN(auto setup, RanksOf(kLlama, kRanks, kTokens, 10e9));
    setup.slow_motion = 1;  // what is drawn is this machine's time
    Mutex mutex;
    std::vector<RankTimeline> timelines(kRanks);
    setup.on_done = [&](int rank, const RankJob& job, const KvGate& gate) {
      const TokenRange own = RangesOf(job, rank)[0];
      MutexLock lock(mutex);
      timelines[rank] = {own.begin, own.end, gate.layers(), Clock::Real().Now()};
    };
    TimePoint began;
    {
      EmulatedRanks ranks(std::move(setup));
      const auto prompt = RandomPrompt(kTokens, ranks.trial().vocab_size(), kTokens);
      const Partition partition = PlannedOf(ranks, kTokens);
      began = Clock::Real().Now();
      RETURN_IF_ERROR(
          ranks.trial().Several(prompt, RankMethod::kChain, partition).map([](auto) {}));
    }
    return WriteFile(
        options_.timeline,
        DrawTimeline(fmt::format("{}, {} tokens on {} emulated A100s, links of 10 GB/s", kLlama,
                                 kTokens, kRanks),
                     began, timelines));
  }

  const RunaheadPapersOptions& options_;
  std::map<std::string, EmulatedProfile> profiles_;
  CellNames names_;
  RunaheadPicture picture_;
  nlohmann::ordered_json json_ = nlohmann::ordered_json::array();
};

}  // namespace

Status RunRunaheadPapers(const RunaheadPapersOptions& options) {
  return PapersBench(options).Run();
}

}  // namespace kvcake::bench
