#include "runahead/partition_analytic.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "runahead/chain_model.h"

namespace kvcake {
namespace {

double TtftSeconds(const ChainCost& cost, const Partition& partition) {
  return PredictChain(cost, partition).ttft_s;
}

bool HasClosedForm(const ChainCost& cost) {
  const RankCost& first = cost.ranks[0];
  const auto alike = [&](const RankCost& rank) {
    return rank.time.attention == SliceTime::Attention::kCausal && rank.time.g == 0 &&
           rank.speed == first.speed && rank.t0_s == first.t0_s && rank.time.c0 == first.time.c0 &&
           rank.time.b == first.time.b && rank.time.a == first.time.a;
  };
  return cost.link.free() && std::all_of(cost.ranks.begin(), cost.ranks.end(), alike);
}

// Where the work of all before, b x + a x^2, is this share of the prompt's.
double EqualWorkBound(const SliceTime& t, double n, double share) {
  const double work = share * (t.b * n + t.a * n * n);
  if (work == 0) return share * n;
  return 2 * work / (t.b + std::sqrt(t.b * t.b + 4 * t.a * work));
}

// How far the ranks come if each computes no longer than this, and no link sends longer. Its
// messages are those of PredictChain: at each layer a piece per rank before it.
std::vector<double> Reach(const ChainCost& cost, double seconds, double tokens) {
  const double beta_s = cost.bytes_per_token() / cost.link.bytes_per_s;
  const int ranks = static_cast<int>(cost.ranks.size());
  std::vector<double> x{0};
  for (int i = 0; i < ranks; ++i) {
    double next = x[i] + cost.ranks[i].TokensWithin(x[i], seconds);
    if (i + 1 < ranks) {
      const double alpha_s = cost.link.alpha_s * cost.layers * (i + 1);
      if (seconds < alpha_s + beta_s * next) next = (seconds - alpha_s) / beta_s;
    }
    x.push_back(std::clamp(next, x[i], tokens));
  }
  return x;
}

std::vector<double> BalancedBounds(const ChainCost& cost, double tokens) {
  const int ranks = static_cast<int>(cost.ranks.size());
  std::vector<double> x{0};
  if (HasClosedForm(cost)) {
    for (double i = 1; i <= ranks; ++i) {
      x.push_back(EqualWorkBound(cost.ranks[0].time, tokens, i / ranks));
    }
    return x;
  }
  constexpr double kInstant = 1e-9;  // of costs that nobody has measured yet
  double low_s = 0, high_s = std::max(kInstant, cost.ranks.back().SecondsFor(0, tokens));
  while (Reach(cost, high_s, tokens).back() < tokens) high_s *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle_s = (low_s + high_s) / 2;
    (Reach(cost, middle_s, tokens).back() < tokens ? low_s : high_s) = middle_s;
  }
  return Reach(cost, high_s, tokens);
}

// Whether there is effort for one prediction more, which is spent then.
bool Spend(const ChainCost& cost, Effort* effort) {
  const auto ranks = static_cast<int64_t>(cost.ranks.size());
  const int64_t messages = cost.layers * ranks * (ranks + 1) / 2;
  if (effort->messages < messages) return false;
  effort->messages -= messages;
  return true;
}

// Moves bounds first..last together where that helps, as far as it does; true if it did.
bool TryMove(const ChainCost& cost, Partition& best, double& best_s, int first, int last, int step,
             Effort* effort) {
  bool moved = false;
  for (const int by : {step, -step}) {
    while (true) {
      Partition next = best;
      for (int i = first; i <= last; ++i) next.bounds[i] += by;
      if (next.size(first - 1) < 1 || next.size(last) < 1 || !Spend(cost, effort)) break;
      const double next_s = TtftSeconds(cost, next);
      if (next_s >= best_s) break;
      best = std::move(next), best_s = next_s, moved = true;
    }
    if (moved) break;
  }
  return moved;
}

}  // namespace

Partition BalancedPartition(const ChainCost& cost, int tokens) {
  CHECK(tokens >= static_cast<int>(cost.ranks.size()));
  std::vector<double> bounds = BalancedBounds(cost, tokens);
  bounds.back() = tokens;
  return RoundedPartition(bounds);
}

Partition ImprovePartition(const ChainCost& cost, Partition partition, int stride_tokens,
                           Effort* effort) {
  Effort own;
  if (effort == nullptr) effort = &own;
  constexpr int kSweepsMax = 4;  // at each stride
  constexpr int kStrides = 16;   // of the longest, in a prompt
  const int last = partition.ranks() - 1;
  double best_s = TtftSeconds(cost, partition);
  int64_t stride = stride_tokens;
  while (stride * 2 <= partition.tokens() / kStrides) stride *= 2;
  for (; stride >= stride_tokens; stride /= 2) {
    bool moved = true;
    for (int sweep = 0; moved && sweep < kSweepsMax; ++sweep) {
      moved = false;
      // Tokens from the rank after a run of bounds to the one before it, or back.
      for (int from = 1; from <= last; ++from) {
        for (int to = from; to <= last; ++to) {
          moved |= TryMove(cost, partition, best_s, from, to, static_cast<int>(stride), effort);
        }
      }
    }
  }
  return partition;
}

Partition AnalyticPartition(const ChainCost& cost, int tokens, Effort* effort) {
  constexpr int kStepsOfAPrompt = 2048;  // finer ones change nothing that can be measured
  constexpr double kGainMin = 0.01;
  ChainCost free = cost;
  free.link = {};
  const Partition even = EvenPartition(tokens, static_cast<int>(cost.ranks.size()));
  const double even_s = TtftSeconds(cost, even);
  Partition best = even;
  double best_s = even_s;
  for (const Partition& start :
       {BalancedPartition(cost, tokens), BalancedPartition(free, tokens)}) {
    const double seconds = TtftSeconds(cost, start);
    if (seconds < best_s) best = start, best_s = seconds;
  }
  best = ImprovePartition(cost, std::move(best), std::max(1, tokens / kStepsOfAPrompt), effort);
  // Where the costs hardly tell parts apart, they say nothing for odd ones.
  return even_s <= TtftSeconds(cost, best) * (1 + kGainMin) ? even : best;
}

Partition ChunkedPartition(const ChainCost& cost, const Partition& partition, int chunk_tokens,
                           double dearer_max, Effort* effort) {
  if (!HasMultiples(partition.tokens(), partition.ranks(), chunk_tokens)) return partition;
  const double exact_s = TtftSeconds(cost, partition);
  const Partition chunked =
      ImprovePartition(cost, OnMultiples(partition, chunk_tokens), chunk_tokens, effort);
  return TtftSeconds(cost, chunked) <= exact_s * (1 + dearer_max) ? chunked : partition;
}

RanksChoice BestRanks(const ChainCost& cost, int tokens, const RanksOptions& options) {
  CHECK(tokens >= 1);
  RanksChoice choice;
  std::vector<Partition> partitions;
  const int ranks_max = std::min(static_cast<int>(cost.ranks.size()), tokens);
  Effort left = options.effort;
  for (int ranks = 1; ranks <= ranks_max; ++ranks) {
    const ChainCost some = cost.Last(ranks);
    const int64_t share = left.messages / (ranks_max - ranks + 1);
    Effort first{share / 2};
    const Partition any = AnalyticPartition(some, tokens, &first);
    Effort rest{share - share / 2 + first.messages};
    partitions.push_back(ChunkedPartition(some, any, options.chunk_tokens, kDearerMax, &rest));
    left.messages -= share - rest.messages;
    choice.ttft_by_ranks_s.push_back(TtftSeconds(some, partitions.back()));
  }
  const std::vector<double>& ttft_s = choice.ttft_by_ranks_s;
  const double enough_s = *std::min_element(ttft_s.begin(), ttft_s.end()) * (1 + options.gain_min);
  const auto chosen = std::find_if(ttft_s.begin(), ttft_s.end(),
                                   [&](double seconds) { return seconds <= enough_s; });
  choice.ttft_s = *chosen;
  choice.partition = std::move(partitions[chosen - ttft_s.begin()]);
  return choice;
}

}  // namespace kvcake
