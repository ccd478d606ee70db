// Which tokens of a prompt each rank of a chain computes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvcake {

struct Partition {
  // Rank i computes [bounds[i], bounds[i + 1]); ascends strictly from 0 to the number of tokens.
  std::vector<int> bounds;

  int ranks() const { return static_cast<int>(bounds.size()) - 1; }
  int tokens() const { return bounds.back(); }
  int begin(int rank) const { return bounds[rank]; }
  int size(int rank) const { return bounds[rank + 1] - bounds[rank]; }
  std::vector<double> fractions() const;

  friend bool operator==(const Partition&, const Partition&) = default;
};

// kInvalidArgument unless the bounds ascend from 0 to `tokens` and make `ranks` parts.
Status CheckPartition(const Partition& partition, int tokens, int ranks);

// Whole tokens nearest to these bounds, of which the first is 0 and the last the number of tokens;
// every rank gets one at least, so there are as many tokens as ranks.
Partition RoundedPartition(const std::vector<double>& bounds);
// KVR-E. tokens >= ranks.
Partition EvenPartition(int tokens, int ranks);
// The shares' bounds, rounded; every rank gets a token at least. CheckFractions holds, and there
// are as many tokens as shares.
Partition PartitionOf(const std::vector<double>& fractions, int tokens);
// kInvalidArgument unless they are positive and sum to 1 within a hundredth.
Status CheckFractions(const std::vector<double>& fractions);

// A flag's value: "0.35,0.25,0.2,0.2" (shares that sum to 1) or "4096,3072,2048,1024" (tokens that
// sum to the prompt's). kInvalidArgument names the flag's value and what is wrong with it.
Result<Partition> ParsePartition(std::string_view text, int tokens, int ranks);
// "4096,3072,2048,1024".
std::string FormatPartition(const Partition& partition);

// Whether a prompt can be split at multiples of `step` into as many parts.
bool HasMultiples(int tokens, int ranks, int step);
// With every bound but the ends at a multiple of `step`, the nearest that leaves each rank a part.
// HasMultiples.
Partition OnMultiples(const Partition& partition, int step);

}  // namespace kvcake
