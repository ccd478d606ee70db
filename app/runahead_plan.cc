// kvcake runahead plan: how many processes pay for a prompt, and which of its tokens each computes.
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "app/flags.h"
#include "app/ranks.h"
#include "app/runahead.h"
#include "base/cpu.h"
#include "base/dump_json.h"
#include "bench/harness.h"
#include "engine/rank_costs.h"
#include "runahead/chain_model.h"
#include "runahead/partition_analytic.h"

namespace kvcake {
namespace {

constexpr int kContexts[] = {2048, 4096, 8192, 16384};

struct PlanFlags {
  RuntimeOptions runtime;
  std::string profile;
  std::vector<int> contexts = {};  // default: those of kContexts that the model can have
  int ranks = 4;
  std::vector<double> link_rates_bytes_per_s = {};
  std::optional<double> link_latency_s = {};  // else what the profile says
  std::string json;                           // a file, or - for stdout instead of the table
};

// What every rank computes with, before links are known.
struct Hardware {
  std::string name;
  ChainCost cost;
  int context_max = INT_MAX;  // what the model can have
};

Result<Hardware> HardwareOf(const PlanFlags& flags) {
  if (!flags.profile.empty()) {
    ASSIGN_OR_RETURN(const EmulatedProfile profile, LoadEmulatedProfile(flags.profile));
    return Hardware{profile.name, ChainCostOf(profile, flags.ranks)};
  }
  if (flags.runtime.model_dir.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "--model DIR, or --profile FILE, is required");
  }
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(flags.runtime));
  RETURN_IF_ERROR(WarmUpFar(*runtime));
  return Hardware{fmt::format("{}, {} threads, {}", CpuName(), runtime->threads().size(),
                              flags.runtime.model_dir),
                  ChainCostOf(*runtime, flags.ranks, {}), runtime->model().max_positions()};
}

Result<std::vector<int>> ContextsOf(const PlanFlags& flags, int context_max) {
  std::vector<int> contexts = flags.contexts;
  if (contexts.empty()) {
    std::copy_if(std::begin(kContexts), std::end(kContexts), std::back_inserter(contexts),
                 [&](int tokens) { return tokens <= context_max; });
    if (contexts.empty()) contexts.push_back(context_max);
  }
  RETURN_IF_ERROR(CheckContexts(contexts, context_max));
  return contexts;
}

struct Row {
  int tokens = 0;
  LinkCost link;
  RanksChoice choice;
  std::vector<double> tsp_by_ranks_s = {};
};

Row Plan(const ChainCost& cost, int tokens, int chunk_tokens) {
  Row row{.tokens = tokens,
          .link = cost.link,
          .choice = BestRanks(cost, tokens, {.chunk_tokens = chunk_tokens})};
  for (size_t ranks = 1; ranks <= row.choice.ttft_by_ranks_s.size(); ++ranks) {
    const ChainCost some = cost.Last(static_cast<int>(ranks));
    row.tsp_by_ranks_s.push_back(PredictGather(some, tokens, GatherMethod::kTsp).ttft_s);
  }
  return row;
}

std::string LinkName(const LinkCost& link) {
  return std::isinf(link.bytes_per_s) ? "free" : fmt::format("{:g} GB/s", link.bytes_per_s / 1e9);
}

void PrintTable(const std::vector<Row>& rows, int ranks) {
  fmt::print("seconds to the first token, by ranks\n{:>7} {:>10}", "tokens", "link");
  for (int i = 1; i <= ranks; ++i) fmt::print(" {:>8}", i);
  fmt::print(" {:>5} {:>6} {:>8}  {}\n", "pay", "gain", "tsp", "tokens of each rank");
  for (const Row& row : rows) {
    const std::vector<double>& ttft_s = row.choice.ttft_by_ranks_s;
    fmt::print("{:>7} {:>10}", row.tokens, LinkName(row.link));
    for (const double seconds : ttft_s) fmt::print(" {:>8.3f}", seconds);
    const int best = row.choice.partition.ranks();
    fmt::print(" {:>5} {:>5.2f}x {:>8.3f}  {}\n", best, ttft_s[0] / row.choice.ttft_s,
               row.tsp_by_ranks_s[best - 1], FormatPartition(row.choice.partition));
  }
}

nlohmann::ordered_json PlanJson(const Hardware& hardware, const std::vector<Row>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json rate = nullptr;  // of a free link
    if (!std::isinf(row.link.bytes_per_s)) rate = row.link.bytes_per_s;
    list.push_back({{"tokens", row.tokens},
                    {"link_bytes_per_s", rate},
                    {"link_latency_s", row.link.alpha_s},
                    {"ranks", row.choice.partition.ranks()},
                    {"bounds", row.choice.partition.bounds},
                    {"ttft_s", row.choice.ttft_s},
                    {"ttft_by_ranks_s", row.choice.ttft_by_ranks_s},
                    {"tsp_by_ranks_s", row.tsp_by_ranks_s}});
  }
  const SliceTime& time = hardware.cost.ranks[0].time;
  return {{"hardware", hardware.name},
          {"layers", hardware.cost.layers},
          {"kv_bytes_per_token", static_cast<int64_t>(hardware.cost.bytes_per_token())},
          {"time",
           {{"attention", time.attention == SliceTime::Attention::kDense ? "dense" : "causal"},
            {"c0", time.c0},
            {"g", time.g},
            {"b", time.b},
            {"a", time.a},
            {"floor", time.floor}}},
          {"plans", std::move(list)}};
}

Status RunPlan(const PlanFlags& flags) {
  ASSIGN_OR_RETURN(Hardware hardware, HardwareOf(flags));
  ASSIGN_OR_RETURN(const auto contexts, ContextsOf(flags, hardware.context_max));
  std::vector<double> rates = flags.link_rates_bytes_per_s;
  if (rates.empty()) rates.push_back(LinkCost().bytes_per_s);
  if (flags.link_latency_s) hardware.cost.link.alpha_s = *flags.link_latency_s;
  std::vector<Row> rows;
  for (const int tokens : contexts) {
    for (const double rate : rates) {
      hardware.cost.link.bytes_per_s = rate;
      rows.push_back(Plan(hardware.cost, tokens, flags.runtime.chunk_tokens));
    }
  }
  if (flags.json == "-") {
    fmt::print("{}\n", DumpJson(PlanJson(hardware, rows), 2));
    return {};
  }
  fmt::print("{}\n", hardware.name);
  PrintTable(rows, flags.ranks);
  return flags.json.empty() ? Status() : bench::WriteJson(flags.json, PlanJson(hardware, rows));
}

}  // namespace

Status CheckContexts(std::span<const int> contexts, int context_max) {
  const int longest = *std::max_element(contexts.begin(), contexts.end());
  if (longest <= context_max) return {};
  return Fail(ErrorCode::kInvalidArgument, "--context {} is longer than the model's {}", longest,
              context_max);
}

void AddRunaheadPlanCommand(CLI::App& runahead, int* exit_code) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* plan = runahead.add_subcommand(
      "plan",
      "predict the first token's time on chains of 1 to P processes, each on a machine "
      "like this one or the profile's, and say how many pay");
  AddRuntimeFlags(*plan, &flags->runtime);
  plan->get_option("--model")->required(false);
  plan->add_option("--profile", flags->profile,
                   "instead of --model: a machine and a model that are not here, e.g. "
                   "bench/profiles/kvr/a100-llama-7b.json")
      ->excludes("--model");
  plan->add_option("--context", flags->contexts, "prompt tokens")
      ->check(CLI::Range(128, 1 << 20))
      ->default_str(fmt::format("{}", fmt::join(kContexts, " ")));
  plan->add_option("--ranks", flags->ranks, "most processes")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  plan->add_option("--link-rate", flags->link_rates_bytes_per_s,
                   "of the links from each to the next, e.g. 10Gbit 1GB 300GB (a second) (default: "
                   "as if they cost nothing)")
      ->transform(RateValue())
      ->check(Positive());
  plan->add_option("--link-latency", flags->link_latency_s,
                   "of a message on them, e.g. 50us (default: the profile's, or none)")
      ->transform(DurationValue())
      ->check(NotNegative());
  plan->add_option("--json", flags->json, "write JSON to this file; without one, to stdout")
      ->expected(0, 1)
      ->default_str("-");
  RunWhenChosen(plan, RunPlan, flags, exit_code);
}

void AddRunaheadCommand(CLI::App& app, int* exit_code) {
  CLI::App* runahead = app.add_subcommand(
      "runahead", "how prompts are divided among several processes (docs/runahead.md)");
  runahead->require_subcommand(1);
  AddRunaheadPlanCommand(*runahead, exit_code);
  AddRunaheadSearchCommand(*runahead, exit_code);
}

}  // namespace kvcake
