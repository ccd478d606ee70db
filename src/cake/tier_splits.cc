#include "cake/tier_splits.h"

#include <algorithm>
#include <bit>
#include <boost/container/small_vector.hpp>
#include <limits>
#include <vector>

#include "cake/plan_walks.h"

namespace kvcake {
namespace {

using State = ChunkView::State;
template <typename T>
using Few = boost::container::small_vector<T, 8>;

constexpr size_t kSetsMax = 8;  // what is tried grows with them
// What lies more than a block ahead is planned again before it matters.
constexpr int kBlocksMax = 64;

// The prompt from `first` on in blocks of chunks, and what each set of tiers holds of each.
class Blocks {
 public:
  // What exactly these tiers hold of a block.
  struct Cell {
    int absent = 0;
    bool in_flight = false;  // some of it
    double eta_s = 0;        // when that has come
    double compute_s = 0;    // to compute all of it, beside the holes
  };

  Blocks(const PlanInput& input, int first)
      : input_(input),
        first_(first),
        n_(static_cast<int>(input.chunks.size())),
        chunks_((n_ - first + kBlocksMax - 1) / kBlocksMax),
        size_((n_ - first + chunks_ - 1) / chunks_),
        set_of_(n_ - first, -1) {
    FindSets();
    if (HasSeveral()) Fill();
  }

  // Tiers hold different chunks, and not too many kinds of them: there is nothing else otherwise.
  bool HasSeveral() const { return sets_.size() > 1 && sets_.size() <= kSetsMax; }

  int size() const { return size_; }
  int BlockOf(int chunk) const { return (chunk - first_) / chunks_; }
  // Bits of tiers: each set once, as far as they are no more than one too many.
  const Few<uint32_t>& sets() const { return sets_; }
  // The set that holds the chunk; -1: it is resident, being computed, or a hole.
  int SetOf(int chunk) const { return set_of_[chunk - first_]; }
  const Cell& At(int block, size_t set) const { return cells_[block * sets_.size() + set]; }
  double holes_s(int block) const { return holes_s_[block]; }  // to compute its holes
  double all_s(int block) const { return all_s_[block]; }      // to compute all that is missing

 private:
  void FindSets() {
    for (int i = first_; i < n_ && sets_.size() <= kSetsMax; ++i) {
      const ChunkView& chunk = input_.chunks[i];
      if (!chunk.IsMissing() || chunk.IsHole()) continue;
      const auto it = std::find(sets_.begin(), sets_.end(), chunk.tiers);
      set_of_[i - first_] = static_cast<int8_t>(it - sets_.begin());
      if (it == sets_.end()) sets_.push_back(chunk.tiers);
    }
  }

  void Fill() {
    cells_.resize(size_ * sets_.size());
    holes_s_.resize(size_);
    all_s_.resize(size_);
    const auto is_hole = [&](int i) { return SetOf(i) < 0; };
    Compute([](int) { return true; }, [&](int i, double s) { all_s_[BlockOf(i)] += s; });
    Compute(is_hole, [&](int i, double s) { holes_s_[BlockOf(i)] += s; });
    for (int k = 0; k < static_cast<int>(sets_.size()); ++k) {
      Compute([&](int i) { return is_hole(i) || SetOf(i) == k; },
              [&](int i, double s) {
                if (!is_hole(i)) CellOf(i).compute_s += s;
              });
    }
    for (int i = first_; i < n_; ++i) {
      if (SetOf(i) < 0) continue;
      Cell& cell = CellOf(i);
      const ChunkView& chunk = input_.chunks[i];
      if (chunk.state == State::kAbsent) {
        ++cell.absent;
      } else {
        cell.in_flight = true;
        cell.eta_s = std::max(cell.eta_s, chunk.eta_s);
      }
    }
  }
  Cell& CellOf(int chunk) { return cells_[BlockOf(chunk) * sets_.size() + SetOf(chunk)]; }
  // Visits the missing chunks that are chosen, with what computing each of them adds.
  template <typename Chosen, typename Visit>
  void Compute(Chosen&& chosen, Visit&& visit) const {
    ComputeWalk compute(input_);
    for (int i = first_; i < n_; ++i) {
      if (!input_.chunks[i].IsMissing() || !chosen(i)) continue;
      const double before_s = compute.now_s();
      compute.Compute(i);
      visit(i, compute.now_s() - before_s);
    }
  }

  const PlanInput& input_;
  const int first_, n_;
  const int chunks_, size_;  // of a block, and blocks
  std::vector<int8_t> set_of_;
  Few<uint32_t> sets_;
  std::vector<Cell> cells_;  // [block][set]
  std::vector<double> holes_s_, all_s_;
};

class TierSplitSearch {
 public:
  // All are borrowed. The blocks have several sets.
  TierSplitSearch(const PlanInput& input, const PlannerOptions& options, int first,
                  const Blocks& blocks)
      : input_(input),
        options_(options),
        first_(first),
        n_(static_cast<int>(input.chunks.size())),
        blocks_(blocks),
        beside_(input) {
    for (size_t k = 0; k < sets().size(); ++k) by_choice_.push_back(static_cast<int>(k));
    std::stable_sort(by_choice_.begin(), by_choice_.end(), [&](int a, int b) {
      return std::popcount(sets()[a]) < std::popcount(sets()[b]);
    });
    shares_.resize(sets().size() * input.tiers.size());
  }

  Splits Run() {
    Splits best = Best(/*waits=*/-1);
    const int set = blocks_.SetOf(first_);
    if (set < 0 || best.sides[first_] != Side::kCompute) return best;
    const auto begin = best.sides.begin() + first_;
    const auto end =
        std::find_if(begin, best.sides.end(), [](Side side) { return side != Side::kCompute; });
    const double enough_s =
        EnoughGain(input_, options_, first_, best.finish_s, static_cast<int>(end - begin));
    Splits waiting = Best(/*waits=*/set);
    return waiting.finish_s <= best.finish_s + enough_s ? waiting : best;
  }

 private:
  // By set: the first block of which its tiers load what they hold.
  using Ends = Few<int>;

  // What counts a little beside the time when all is done, so that a search that moves one split at
  // a time gets past moves that gain nothing alone: when the first of compute and loads is done, or
  // how late each lane is. Either finds what the other misses.
  enum class Beside { kFirst, kEach };

  const Few<uint32_t>& sets() const { return blocks_.sets(); }
  double& ShareOf(int set, int tier) { return shares_[set * input_.tiers.size() + tier]; }

  // waits: a set of which nothing is computed; -1: none.
  Splits Best(int waits) {
    Splits first = Assign(Search(waits, Beside::kFirst));
    Splits each = Assign(Search(waits, Beside::kEach));
    return first.finish_s <= each.finish_s ? first : each;
  }

  // The ends of the least estimated time.
  Ends Search(int waits, Beside beside) {
    Ends best(sets().size(), 0);
    double best_s = Estimate(best, beside);
    // Tries the ends that `with` makes of a block, in ever smaller steps around the best of them.
    const auto scan = [&](const auto& with) {
      int middle = 0;
      double middle_s = std::numeric_limits<double>::infinity();
      const auto probe = [&](int block) {
        if (block < 0 || block > blocks_.size()) return;
        Ends ends = with(block);
        const double s = Estimate(ends, beside);
        if (s < middle_s) middle_s = s, middle = block;
        if (s < best_s) best_s = s, best = std::move(ends);
      };
      int step = std::max(1, static_cast<int>(std::bit_floor(unsigned(blocks_.size()))) / 4);
      for (int block = 0; block < blocks_.size(); block += step) probe(block);
      probe(blocks_.size());
      while (step > 1) {
        step /= 2;
        const int around = middle;
        probe(around - step);
        probe(around + step);
      }
    };
    scan([&](int block) {
      Ends ends(sets().size(), block);
      if (waits >= 0) ends[waits] = 0;
      return ends;
    });
    constexpr int kRounds = 3;
    constexpr double kGainMin = 0.9999;
    for (int round = 0; round < kRounds; ++round) {
      const double before_s = best_s;
      for (int k = 0; k < static_cast<int>(sets().size()); ++k) {
        if (k == waits) continue;
        const Ends others = best;
        scan([&](int block) {
          Ends ends = others;
          ends[k] = block;
          return ends;
        });
      }
      if (best_s >= before_s * kGainMin) break;
    }
    return best;
  }

  // What each tier loads of each set, as shares of its chunks, as if those could be cut anywhere:
  // all tiers are done as early as they can be, and sets with the least choice come first.
  void Share(const Ends& ends) {
    Few<double> free_s = Drains();
    std::fill(shares_.begin(), shares_.end(), 0);
    for (const int k : by_choice_) {
      double chunks = 0;
      for (int b = ends[k]; b < blocks_.size(); ++b) chunks += blocks_.At(b, k).absent;
      if (chunks == 0) continue;
      uint32_t tiers = sets()[k];
      double done_s = 0;
      for (uint32_t late = tiers; late != 0; tiers &= ~late) {
        double rate = 0, before = 0;  // before: chunks that they could load until they are free
        ForEachTier(tiers, [&](int t) {
          rate += RateOf(t);
          before += free_s[t] * RateOf(t);
        });
        done_s = (chunks + before) / rate;
        late = 0;
        ForEachTier(tiers, [&](int t) { late |= free_s[t] > done_s ? 1u << t : 0; });
      }
      ForEachTier(tiers, [&](int t) {
        ShareOf(k, t) = (done_s - free_s[t]) * RateOf(t) / chunks;
        free_s[t] = done_s;
      });
    }
  }
  // When each tier could begin to deliver one more chunk.
  Few<double> Drains() const {
    Few<double> drains_s;
    for (const TierView& tier : input_.tiers) drains_s.push_back(tier.drain_s);
    return drains_s;
  }
  double RateOf(int tier) const { return Rate(input_.tiers[tier]); }

  // When all would be resident, block by block: compute waits for what is loaded of those before.
  double Estimate(const Ends& ends, Beside beside) {
    Share(ends);
    const int computed = *std::min_element(ends.begin(), ends.end());  // whole blocks
    double now_s = input_.compute_busy_s, work_s = 0, loaded_s = 0;
    int coming = 0;
    bool takes_over = false;
    Few<double> free_s = Drains();
    for (int b = 0; b < blocks_.size(); ++b) {
      double block_s = b < computed ? blocks_.all_s(b) : blocks_.holes_s(b);
      double block_loaded_s = loaded_s;
      for (int k = 0; k < static_cast<int>(ends.size()); ++k) {
        const Blocks::Cell& cell = blocks_.At(b, k);
        if (b < ends[k]) {
          if (b >= computed) block_s += cell.compute_s;
          takes_over = takes_over || cell.in_flight;
          continue;
        }
        coming += cell.absent + cell.in_flight;
        block_loaded_s = std::max(block_loaded_s, cell.eta_s);
        if (cell.absent == 0) continue;
        ForEachTier(sets()[k], [&](int t) {
          if (ShareOf(k, t) == 0) return;
          free_s[t] += cell.absent * ShareOf(k, t) / RateOf(t);
          block_loaded_s = std::max(block_loaded_s, free_s[t]);
        });
      }
      if (block_s > 0) now_s = std::max(now_s, loaded_s) + block_s;
      work_s += block_s;
      loaded_s = block_loaded_s;
    }
    const double finish_s = std::max(now_s, loaded_s);
    double little_s = std::min(now_s, loaded_s);
    if (beside == Beside::kEach && finish_s > 0) {
      double squares = now_s * now_s;
      for (const double s : free_s) squares += s * s;
      little_s = squares / finish_s;
    }
    constexpr double kLittle = 0.01;
    return finish_s + kLittle * little_s + ExtraSeconds(work_s, coming, takes_over);
  }

  // What is computed, what each tier loads of the rest, and when all is resident.
  Splits Assign(const Ends& ends) const {
    Splits result{.sides = std::vector<Side>(n_, Side::kCompute),
                  .tiers = std::vector<int8_t>(n_, -1)};
    for (int i = first_; i < n_; ++i) {
      const int set = blocks_.SetOf(i);
      if (set >= 0 && blocks_.BlockOf(i) >= ends[set]) result.sides[i] = Side::kLoad;
    }
    LoadWalk links(input_);
    ForEachByChoice(input_, first_, [&](int i) {
      if (result.sides[i] == Side::kLoad) links.Load(input_.chunks[i], &result.tiers[i]);
    });
    result.finish_s = Finish(result);
    return result;
  }

  // Chunk by chunk: a tier loads what is wanted first.
  double Finish(const Splits& splits) const {
    ComputeWalk compute(input_);
    double waits_s = input_.compute_busy_s, loaded_s = 0;
    int coming = 0;
    bool takes_over = false;
    Few<double> free_s = Drains();
    for (int i = first_; i < n_; ++i) {
      const ChunkView& chunk = input_.chunks[i];
      if (!chunk.IsMissing()) continue;
      const bool in_flight = chunk.state == State::kInFlight;
      if (splits.sides[i] == Side::kCompute) {
        waits_s = std::max(waits_s, loaded_s - compute.now_s());
        compute.Compute(i);
        takes_over = takes_over || in_flight;
        continue;
      }
      ++coming;
      if (!in_flight) free_s[splits.tiers[i]] += 1 / RateOf(splits.tiers[i]);
      loaded_s = std::max(loaded_s, in_flight ? chunk.eta_s : free_s[splits.tiers[i]]);
    }
    return std::max(waits_s + compute.now_s(), loaded_s) +
           ExtraSeconds(compute.now_s(), coming, takes_over);
  }

  // What lanes cost each other, and what a load that compute takes over must promise.
  double ExtraSeconds(double work_s, int coming, bool takes_over) const {
    const double margin_s = options_.take_over_margin_chunks * SliceSeconds(input_, first_, 1);
    return beside_.Seconds(work_s, coming) + (takes_over ? margin_s : 0);
  }

  const PlanInput& input_;
  const PlannerOptions& options_;
  const int first_, n_;
  const Blocks& blocks_;
  const BesideCost beside_;
  Few<int> by_choice_;  // sets, those of the fewest tiers first
  Few<double> shares_;  // [set][tier]: as of the last Share
};

}  // namespace

std::optional<Splits> LeastFinishBySets(const PlanInput& input, const PlannerOptions& options,
                                        int first) {
  if (input.tiers.size() < 2) return {};
  const Blocks blocks(input, first);
  if (!blocks.HasSeveral()) return {};
  return TierSplitSearch(input, options, first, blocks).Run();
}

}  // namespace kvcake
