// kvcake runahead search: the partitions that are measured to be fastest, kept in a table.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/flags.h"
#include "app/ranks.h"
#include "app/runahead.h"
#include "base/dump_json.h"
#include "bench/harness.h"
#include "bench/rank_trial.h"
#include "engine/rank_costs.h"
#include "runahead/partition_analytic.h"
#include "runahead/partition_search.h"

namespace kvcake {
namespace {

struct SearchFlags {
  RuntimeOptions runtime;
  RankFlags ranks{.ranks = 2};
  std::vector<int> contexts = {4096};
  int stride_min_tokens = 0;  // 0: --chunk-tokens
  int repeats = 3;
  bool json = false;
};

void PrintProgress(const SearchProgress& progress) {
  fmt::print(stderr, "{:>5} {:>8} {:>9.3f}  {:<28} best {:.3f}  {}\n", progress.measurements,
             progress.stride_tokens, progress.last.seconds,
             FormatPartition(progress.last.partition), progress.best.seconds,
             FormatPartition(progress.best.partition));
}

// On the leader.
class Searcher {
 public:
  Searcher(const SearchFlags& flags, Runtime& runtime, Ranks& ranks)
      : flags_(flags),
        runtime_(runtime),
        ranks_(ranks),
        key_(TableKeyOf(runtime, ranks.survey())),
        path_(flags.ranks.partition_table.empty() ? DefaultPartitionTable()
                                                  : flags.ranks.partition_table),
        trial_(runtime.model(), runtime.pool(), ranks.comm(),
               {.chain = {.timeout = Seconds(flags.ranks.timeout_s),
                          .staging = runtime.rank_staging()}}) {}

  Status Run() {
    RETURN_IF_ERROR(OpenTable());
    RETURN_IF_ERROR(WarmUpFar(runtime_));
    auto found = nlohmann::ordered_json::array();
    for (const int tokens : flags_.contexts) {
      ASSIGN_OR_RETURN(const SearchResult result, Search(tokens));
      table_.Set(key_, result.best.partition);
      RETURN_IF_ERROR(table_.Save(path_));
      std::error_code ignored;
      std::filesystem::remove(StatePath(tokens), ignored);
      found.push_back({{"tokens", tokens},
                       {"ranks", key_.ranks},
                       {"bounds", result.best.partition.bounds},
                       {"ttft_s", result.best.seconds},
                       {"measurements", result.measurements},
                       {"resumed", result.resumed}});
      if (flags_.json) continue;
      fmt::print("{} tokens on {} ranks: {} in {:.3f} s, after {} measurements\n", tokens,
                 key_.ranks, FormatPartition(result.best.partition), result.best.seconds,
                 result.measurements);
    }
    if (flags_.json) {
      fmt::print("{}\n",
                 DumpJson(nlohmann::ordered_json{{"partition_table", path_}, {"found", found}}, 2));
    } else {
      const std::string& given = flags_.ranks.partition_table;
      fmt::print("kept in {}: kvcake run --partition table{}\n", path_,
                 given.empty() ? "" : " --partition-table " + given);
    }
    return {};
  }

 private:
  Status OpenTable() {
    const auto directory = std::filesystem::path(path_).parent_path();
    if (!directory.empty()) RETURN_IF_ERROR(bench::MakeDir(directory));
    auto table = PartitionTable::Load(path_);
    if (!table && table.error().code == ErrorCode::kNotFound) return {};
    if (!table) return tl::unexpected<Error>(table.error());
    table_ = *std::move(table);
    return {};
  }

  // Whose measurements can go on with each other.
  std::string What() const {
    return fmt::format("{} on {}, medians of {}", key_.model, key_.machine, flags_.repeats);
  }

  std::string StatePath(int tokens) const {
    const std::string what = What();
    return fmt::format("{}.search-{:016x}-{}x{}", path_, Xxh3_64(std::as_bytes(std::span(what))),
                       key_.ranks, tokens);
  }

  // What other lengths have shown, else what the costs say.
  Partition Seed(int tokens) const {
    if (auto partition = table_.PartitionFor(key_, tokens)) return *std::move(partition);
    return AnalyticPartition(
        ChainCostOf(runtime_, key_.ranks, LinkOf(flags_.ranks, ranks_.survey())), tokens);
  }

  Result<SearchResult> Search(int tokens) {
    const std::vector<int32_t> prompt =
        bench::RandomPrompt(tokens, runtime_.model().vocab_size(), tokens);
    const auto measure = [&](const Partition& partition) {
      return trial_.ChainSeconds(prompt, partition, flags_.repeats);
    };
    const Partition seed = Seed(tokens);
    RETURN_IF_ERROR(trial_.ChainSeconds(prompt, seed, 1).map([](auto) {}));  // it touches memory
    fmt::print(stderr, "{} tokens on {} ranks, each partition {} times\n{:>5} {:>8} {:>9}  {}\n",
               tokens, key_.ranks, flags_.repeats, "", "stride", "ttft s", "tokens of each rank");
    return SearchPartition(
        {.what = What(),
         .tokens = tokens,
         .ranks = key_.ranks,
         .stride_min_tokens = flags_.stride_min_tokens > 0 ? flags_.stride_min_tokens
                                                           : runtime_.pool().layout().chunk_tokens,
         .seed = seed,
         .state_path = StatePath(tokens),
         .progress = PrintProgress},
        measure);
  }

  const SearchFlags& flags_;
  Runtime& runtime_;
  Ranks& ranks_;
  const PartitionTableKey key_;
  const std::string path_;
  bench::RankTrial trial_;
  PartitionTable table_;
};

Status Search(const SearchFlags& flags, Ranks& ranks) {
  RuntimeOptions options = flags.runtime;
  RETURN_IF_ERROR(ranks.Divide(&options));
  const int longest = *std::max_element(flags.contexts.begin(), flags.contexts.end());
  options.rank_tokens_max = std::max(options.rank_tokens_max, longest);  // whatever is tried
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(options));
  RETURN_IF_ERROR(CheckContexts(flags.contexts, runtime->model().max_positions()));
  if (!ranks.leads()) return ranks.Work(*runtime);
  RETURN_IF_ERROR(ranks.Meet(*runtime));
  return Searcher(flags, *runtime, ranks).Run();
}

}  // namespace

void AddRunaheadSearchCommand(CLI::App& runahead, int* exit_code) {
  auto flags = std::make_shared<SearchFlags>();
  CLI::App* search = runahead.add_subcommand(
      "search", "find the fastest partition by measuring, for kvcake run --partition table");
  AddModelFlags(*search, &flags->runtime);
  AddRankFlags(*search, &flags->ranks);
  search->remove_option(search->get_option("--partition"));
  search
      ->add_option("--context", flags->contexts,
                   "prompt tokens; partitions of others lie between those found")
      ->check(CLI::Range(128, 1 << 20))
      ->capture_default_str();
  search
      ->add_option("--stride-min", flags->stride_min_tokens,
                   "bounds are multiples of so many tokens (default: --chunk-tokens)")
      ->check(CLI::Range(1, 1 << 20));
  search->add_option("--repeats", flags->repeats, "runs of each partition, of which the median")
      ->check(Positive())
      ->capture_default_str();
  search->add_flag("--json", flags->json, "print JSON");
  search->callback([flags, exit_code] {
    *exit_code = RunOnRanks(flags->ranks, [&](Ranks& ranks) { return Search(*flags, ranks); });
  });
}

}  // namespace kvcake
