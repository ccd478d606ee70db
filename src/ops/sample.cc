#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "base/check.h"
#include "ops/cuda_kernels.h"
#include "ops/sample_inl.h"

namespace kvcake {
namespace {

struct Candidate {
  uint64_t rank;
  uint64_t weight;
};

bool Likelier(const Candidate& a, const Candidate& b) { return a.rank > b.rank; }

uint64_t Total(std::span<const Candidate> candidates) {
  uint64_t total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  return total;
}

// The last of the fewest likeliest that together weigh `units` or more, as all of them do. Reorders
// them, and looks at fewer and fewer: a vocabulary is long.
uint64_t RankThatReaches(uint64_t units, std::span<Candidate> candidates) {
  while (candidates.size() > 1) {
    const size_t half = candidates.size() / 2;
    std::nth_element(candidates.begin(), candidates.begin() + half, candidates.end(), Likelier);
    const uint64_t likelier = Total(candidates.first(half));
    if (likelier >= units) {
      candidates = candidates.first(half);
    } else {
      units -= likelier;
      candidates = candidates.subspan(half);
    }
  }
  return candidates[0].rank;
}

// Those that weigh most: at least `count`, which together weigh `units` or more.
std::vector<Candidate> Heaviest(std::span<const Candidate> candidates, int64_t count,
                                uint64_t units) {
  std::vector<Candidate> heaviest;
  for (int bits = 32; std::ssize(heaviest) < count || Total(heaviest) < units; bits -= 8) {
    heaviest.clear();
    std::ranges::copy_if(candidates, std::back_inserter(heaviest),
                         [bits](const Candidate& c) { return c.weight >> bits > 0; });
  }
  return heaviest;
}

// Keeps their order.
void CutTopKAndTopP(const RowSampling& sampling, std::vector<Candidate>* candidates) {
  const bool top_k = sampling.top_k > 0 && sampling.top_k < std::ssize(*candidates);
  if (!top_k && sampling.top_p >= 1) return;
  uint64_t units = UnitsOfShare(sampling.top_p, Total(*candidates));
  std::vector<Candidate> kept =
      top_k ? Heaviest(*candidates, sampling.top_k, 0) : Heaviest(*candidates, 0, units);
  if (top_k) {
    std::nth_element(kept.begin(), kept.begin() + sampling.top_k - 1, kept.end(), Likelier);
    kept.resize(sampling.top_k);
    units = UnitsOfShare(sampling.top_p, Total(kept));
  }
  const uint64_t last = RankThatReaches(units, kept);
  std::erase_if(*candidates, [last](const Candidate& c) { return c.rank < last; });
}

int32_t Likeliest(std::span<const float> logits) {
  int32_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) continue;
    if (best < 0 || logits[i] > logits[best]) best = static_cast<int32_t>(i);
  }
  return std::max(best, 0);
}

}  // namespace

int32_t SampleToken(std::span<const float> logits, const RowSampling& sampling) {
  CHECK(!logits.empty() && std::ssize(logits) <= kSampledVocabMax);
  const int32_t likeliest = Likeliest(logits);
  if (sampling.temperature == 0 || !std::isfinite(logits[likeliest])) return likeliest;
  const Weigher weigher(logits[likeliest], sampling);
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const uint64_t weight = weigher(logits[i]);
    if (weight > 0) candidates.push_back({Rank(logits[i], i), weight});
  }
  CutTopKAndTopP(sampling, &candidates);
  uint64_t left = UnitAt(sampling.uniform, Total(candidates));
  auto at = candidates.begin();
  while (at->weight < left) left -= (at++)->weight;
  return IdOf(at->rank);
}

void SampleTokens(const Compute& compute, const LogitRows& logits,
                  std::span<const RowSampling> rows, int32_t* tokens) {
  CHECK(logits.vocab > 0 && logits.vocab <= kSampledVocabMax);
  if (compute.cuda() != nullptr) return cuda::SampleTokens(*compute.cuda(), logits, rows, tokens);
  compute.pool().ParallelFor(std::ssize(rows), [&](int64_t row, int) {
    const std::span of_row(logits.data + row * logits.stride, static_cast<size_t>(logits.vocab));
    tokens[row] = SampleToken(of_row, rows[row]);
  });
}

}  // namespace kvcake
