#include "runahead/partition.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "base/check.h"

namespace kvcake {
namespace {

constexpr double kFractionsOff = 0.011;  // "0.33,0.33,0.33" is meant well

tl::unexpected<Error> Refuse(std::string_view text, std::string_view what) {
  return Fail(ErrorCode::kInvalidArgument,
              "partition \"{}\": {}; give one share of the prompt per rank, as 0.6,0.4, or one "
              "number of tokens per rank",
              text, what);
}

Result<std::vector<double>> ParseNumbers(std::string_view text) {
  std::vector<double> numbers;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view item = text.substr(at, comma - at);
    double value = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    if (error != std::errc() || end != item.data() + item.size() || !(value > 0) ||
        !std::isfinite(value)) {
      return Refuse(text, fmt::format("\"{}\" is not a number above 0", item));
    }
    numbers.push_back(value);
    at = comma + 1;
  }
  return numbers;
}

}  // namespace

std::vector<double> Partition::fractions() const {
  std::vector<double> shares;
  for (int i = 0; i < ranks(); ++i) shares.push_back(static_cast<double>(size(i)) / tokens());
  return shares;
}

Status CheckPartition(const Partition& partition, int tokens, int ranks) {
  const std::vector<int>& x = partition.bounds;
  if (x.size() != static_cast<size_t>(ranks) + 1) {
    return Fail(ErrorCode::kInvalidArgument, "a partition of {} parts is not one for {} ranks",
                std::max<size_t>(x.size(), 1) - 1, ranks);
  }
  if (x.front() != 0 || x.back() != tokens) {
    return Fail(ErrorCode::kInvalidArgument, "a partition of {} tokens goes from 0 to {}, not {}",
                tokens, tokens, fmt::join(x, ", "));
  }
  for (int i = 0; i < ranks; ++i) {
    if (x[i + 1] > x[i]) continue;
    return Fail(ErrorCode::kInvalidArgument,
                "rank {} gets no tokens in the partition {}: use fewer ranks", i,
                fmt::join(x, ", "));
  }
  return {};
}

Partition RoundedPartition(const std::vector<double>& bounds) {
  const int ranks = static_cast<int>(bounds.size()) - 1;
  const int tokens = static_cast<int>(std::lround(bounds.back()));
  CHECK(ranks >= 1 && tokens >= ranks);
  Partition partition{{0}};
  for (int i = 1; i <= ranks; ++i) {
    const int nearest = static_cast<int>(std::lround(bounds[i]));
    partition.bounds.push_back(
        std::clamp(nearest, partition.bounds.back() + 1, tokens - (ranks - i)));
  }
  return partition;
}

bool HasMultiples(int tokens, int ranks, int step) { return (tokens - 1) / step >= ranks - 1; }

Partition OnMultiples(const Partition& partition, int step) {
  CHECK(HasMultiples(partition.tokens(), partition.ranks(), step));
  std::vector<double> steps;
  for (const int bound : partition.bounds) steps.push_back(static_cast<double>(bound) / step);
  steps.back() = (partition.tokens() - 1) / step + 1;
  Partition snapped = RoundedPartition(steps);
  for (int& bound : snapped.bounds) bound *= step;
  snapped.bounds.back() = partition.tokens();
  return snapped;
}

Partition EvenPartition(int tokens, int ranks) {
  CHECK(ranks >= 1 && tokens >= ranks);
  Partition partition;
  for (int64_t i = 0; i <= ranks; ++i) {
    partition.bounds.push_back(static_cast<int>(i * tokens / ranks));
  }
  return partition;
}

Status CheckFractions(const std::vector<double>& fractions) {
  double sum = 0;
  for (const double share : fractions) {
    if (!(share > 0) || share > 1) {
      return Fail(ErrorCode::kInvalidArgument, "a share is above 0 and at most 1, not {}", share);
    }
    sum += share;
  }
  if (std::abs(sum - 1) > kFractionsOff) {
    return Fail(ErrorCode::kInvalidArgument, "the shares sum to {:.4g}, not 1", sum);
  }
  return {};
}

Partition PartitionOf(const std::vector<double>& fractions, int tokens) {
  CHECK(CheckFractions(fractions));
  const double sum = std::accumulate(fractions.begin(), fractions.end(), 0.0);
  std::vector<double> bounds{0};
  for (const double share : fractions) bounds.push_back(bounds.back() + share / sum * tokens);
  bounds.back() = tokens;
  return RoundedPartition(bounds);
}

Result<Partition> ParsePartition(std::string_view text, int tokens, int ranks) {
  ASSIGN_OR_RETURN(const std::vector<double> numbers, ParseNumbers(text));
  if (numbers.size() != static_cast<size_t>(ranks)) {
    return Refuse(text, fmt::format("{} parts for {} ranks", numbers.size(), ranks));
  }
  if (tokens < ranks) {
    return Refuse(text, fmt::format("{} tokens are fewer than {} ranks", tokens, ranks));
  }
  // Shares are at most 1; so are numbers of tokens only where each rank gets just one.
  if (*std::max_element(numbers.begin(), numbers.end()) <= 1 && tokens > ranks) {
    if (const Status ok = CheckFractions(numbers); !ok) return Refuse(text, ok.error().message);
    return PartitionOf(numbers, tokens);
  }
  Partition partition{{0}};
  double reached = 0;
  for (const double count : numbers) {
    if (count != std::floor(count)) {
      return Refuse(text, fmt::format("{} is neither a share nor a whole number", count));
    }
    reached += count;
    if (reached > tokens) break;
    partition.bounds.push_back(static_cast<int>(reached));
  }
  if (reached != tokens) {
    const double sum = std::accumulate(numbers.begin(), numbers.end(), 0.0);
    return Refuse(text, fmt::format("the tokens sum to {}, the prompt has {}", sum, tokens));
  }
  return partition;
}

std::string FormatPartition(const Partition& partition) {
  std::vector<int> sizes;
  for (int i = 0; i < partition.ranks(); ++i) sizes.push_back(partition.size(i));
  return fmt::format("{}", fmt::join(sizes, ","));
}

}  // namespace kvcake
