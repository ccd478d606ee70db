#include "runahead/chain_planner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "runahead/chain_model.h"
#include "runahead/partition_analytic.h"
#include "runahead/speeds_file.h"

namespace kvcake {
namespace {

constexpr double kNewest = 0.5;  // weight of a job's speeds against those before
// What a rank that is too slow to be used is thought faster by with each prompt: nothing else tells
// that it has become faster. One of half the speed that pays is tried again after 35 prompts.
constexpr double kForgotten = 1.02;

// Gives the time of slices after `origin` as one of their own.
SliceTime After(SliceTime time, int origin) {
  const bool dense = time.attention == SliceTime::Attention::kDense;
  time.c0 += time.g * origin;
  time.b += (dense ? 1 : 2) * time.a * origin;
  return time;
}

class Planner : public ChainPlanner {
 public:
  explicit Planner(ChainPlannerOptions options)
      : options_(std::move(options)),
        file_(options_.speeds_path, options_.fs != nullptr ? *options_.fs : FileSystem::Real()),
        link_(options_.link),
        speeds_(file_.Load()) {}

  std::optional<Partition> Plan(int origin, int tokens, int ranks) override {
    if (tokens < ranks * options_.chunk_tokens) return std::nullopt;
    if (static_cast<int>(speeds_.size()) != ranks) speeds_.assign(ranks, 1);
    if (IsAnalytic(origin)) return Analytic(origin, tokens, ranks);
    if (options_.partition == "table") return FromTable(tokens);
    if (options_.partition == "even") return EvenPartition(tokens, ranks);
    Result<Partition> partition = ParsePartition(options_.partition, tokens, ranks);
    if (partition) return *std::move(partition);
    spdlog::warn("one process prefills a prompt of {} tokens: {}", tokens,
                 partition.error().message);
    return std::nullopt;
  }

  // Ranks are left out for short prompts, slow links and what the leader alone has of a prompt,
  // too, which says nothing of their speeds.
  void ForgetSlowness(int origin, const Partition& planned, int ranks, int alone_from) override {
    const SliceTime time = options_.time();
    const bool too_short = planned.tokens() < ranks * options_.chunk_tokens;
    if (too_short || !IsAnalytic(origin) || time.b <= 0) return;
    const std::span unused(speeds_.data(), ranks - planned.ranks());
    const auto is_slow = [](double speed) { return speed < 1; };
    if (std::none_of(unused.begin(), unused.end(), is_slow)) return;
    ChainCost cost = CostAfter(time, origin);
    for (size_t i = 0; i < unused.size(); ++i) cost.ranks[i].speed = std::max(1.0, unused[i]);
    const Partition otherwise = BestRanks(cost, planned.tokens(), by_chunks()).partition;
    if (otherwise.ranks() <= planned.ranks() || !Pays(cost, otherwise, origin, alone_from)) return;
    for (double& speed : unused) speed = std::max(speed, std::min(1.0, speed * kForgotten));
  }

  void Learn(const RankJob& job, std::span<const RankReport> ranks) override {
    const SliceTime time = options_.time();
    if (time.b <= 0) return;
    const size_t before = speeds_.size() - std::min(speeds_.size(), ranks.size());
    for (size_t i = 0; before + i < speeds_.size(); ++i) {
      const int part = static_cast<int>(i);
      const double expected =
          time.SecondsFor(job.origin + job.partition.begin(part), job.partition.size(part));
      const double measured = expected / ranks[i].compute_s;
      if (!IsSpeed(measured)) continue;  // whatever a rank says
      double& speed = speeds_[before + i];
      speed += kNewest * (measured - speed);
    }
    file_.Save(speeds_);
  }

  bool Pays(int origin, const Partition& partition, int alone_from) override {
    const SliceTime time = options_.time();
    if (!goes_by_costs() || time.b <= 0) return true;
    return Pays(CostAfter(time, origin), partition, origin, alone_from);
  }

  bool learns_links() const override { return options_.link_of && goes_by_costs(); }

  void LearnLinks(const Survey& survey) override {
    const LinkCost link = options_.link_of(survey);
    const bool possible = link.alpha_s >= 0 && std::isfinite(link.alpha_s) && link.bytes_per_s > 0;
    if (possible) link_ = link;  // whatever a rank says
  }

 private:
  bool goes_by_costs() const {
    return options_.partition == "analytic" || options_.partition == "table";
  }
  bool IsAnalytic(int origin) const {
    return options_.partition == "analytic" || (options_.partition == "table" && origin > 0);
  }

  bool Pays(const ChainCost& cost, const Partition& partition, int origin, int alone_from) const {
    const int count = origin + partition.tokens() - alone_from;
    const double alone_s = options_.time().SecondsFor(alone_from, count) / speeds_.back();
    const double chain_s = PredictChain(cost.Last(partition.ranks()), partition).ttft_s;
    return chain_s * (1 + RanksOptions().gain_min) <= alone_s;
  }

  RanksOptions by_chunks() const { return {.chunk_tokens = options_.chunk_tokens}; }

  Partition Analytic(int origin, int tokens, int ranks) const {
    const SliceTime time = options_.time();
    if (time.b <= 0) return EvenPartition(tokens, ranks);
    return BestRanks(CostAfter(time, origin), tokens, by_chunks()).partition;
  }

  ChainCost CostAfter(const SliceTime& time, int origin) const {
    ChainCost cost;
    cost.link = link_;
    cost.layers = options_.layers;
    cost.bytes_per_token_layer = options_.bytes_per_token_layer;
    for (const double speed : speeds_) {
      cost.ranks.push_back({.time = After(time, origin), .speed = speed});
    }
    return cost;
  }

  std::optional<Partition> FromTable(int tokens) {
    const auto partition = options_.table.PartitionFor(options_.table_key, tokens);
    CHECK(partition);  // as NewChainPlanner has seen
    return OnMultiples(*partition, options_.chunk_tokens);
  }

  const ChainPlannerOptions options_;
  SpeedsFile file_;
  LinkCost link_;
  std::vector<double> speeds_;  // of each rank, against `time`
};

}  // namespace

Result<std::unique_ptr<ChainPlanner>> NewChainPlanner(ChainPlannerOptions options) {
  const std::string& how = options.partition;
  if (how == "table") {
    const PartitionTableKey& key = options.table_key;
    RETURN_IF_ERROR(options.table.PartitionFor(key, key.ranks).map([](auto) {}));
  } else if (how != "analytic" && how != "even") {
    // Shares can be looked at before there is a prompt.
    constexpr int kTokens = 1 << 20;
    const auto count = static_cast<int>(std::count(how.begin(), how.end(), ',')) + 1;
    const bool shares = how.find('.') != std::string::npos;
    if (const int ranks = options.table_key.ranks; count != ranks) {
      return Fail(
          ErrorCode::kInvalidArgument,
          "--partition '{}' has {} {} for {} ranks: say analytic, even or table, or of each "
          "rank its share of the prompt (0.6,0.4) or its tokens",
          how, count, count == 1 ? "part" : "parts", ranks);
    }
    if (count < 2 || shares) {
      RETURN_IF_ERROR(ParsePartition(how, kTokens, count).map([](auto) {}));
    }
  }
  return std::make_unique<Planner>(std::move(options));
}

}  // namespace kvcake
