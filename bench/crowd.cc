#include "bench/crowd.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/check.h"

namespace kvcake::bench {
namespace {

constexpr int kChunk = 128;
constexpr int kSliceChunks = 4;

}  // namespace

Crowd RandomCrowd(uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(rng);
  };
  Crowd crowd;
  crowd.compute = {.c0 = uniform(0, 3e-3), .samples = 1};
  crowd.compute.b = (10e-3 - crowd.compute.c0) / kChunk;
  crowd.compute.a = crowd.compute.b * uniform(1e-6, 2e-4);
  crowd.prompts.resize(std::uniform_int_distribution<int>(2, 8)(rng));
  double alone_s = 0;
  int chunks = 0;
  for (int& prompt : crowd.prompts) {
    prompt = std::uniform_int_distribution<int>(4, 64)(rng);
    alone_s += crowd.compute.SecondsFor(0, prompt * kChunk);
    chunks += prompt;
  }
  crowd.chunk_s = std::exp2(uniform(-2, 2)) * alone_s / chunks;
  return crowd;
}

double LeastTotal(const Crowd& crowd, const std::vector<int>& prompts) {
  std::vector<double> costs;
  for (const int chunks : prompts) {
    for (int i = 0; i < chunks; ++i) {  // it shares a slice's fixed part with others
      const double fixed_s = crowd.compute.c0 * (1 - 1.0 / kSliceChunks);
      costs.push_back(crowd.compute.SecondsFor(i * kChunk, kChunk) - fixed_s);
    }
  }
  std::sort(costs.begin(), costs.end());
  double computed_s = 0, least = INFINITY;
  for (size_t m = 0; m <= costs.size(); ++m) {
    least = std::min(least,
                     std::max(computed_s, crowd.chunk_s * static_cast<double>(costs.size() - m)));
    if (m < costs.size()) computed_s += costs[m];
  }
  return least;
}

CrowdTimes LeastTimes(const Crowd& crowd) {
  std::vector<int> sorted = crowd.prompts;
  std::sort(sorted.begin(), sorted.end());
  CrowdTimes times;
  std::vector<int> shortest;
  for (const int prompt : sorted) {
    shortest.push_back(prompt);
    times.total_s = LeastTotal(crowd, shortest);
    times.mean_s += times.total_s / static_cast<double>(sorted.size());
  }
  return times;
}

CrowdTimes RunCrowd(const Crowd& crowd, LoadOrder order) {
  SimOptions options{
      .compute = crowd.compute, .tiers = {{.chunk_s = crowd.chunk_s}}, .pages = 1024};
  options.restorer.load_order = order;
  Simulator sim(options);
  sim.Train();
  std::vector<SimRequest> requests;
  for (size_t i = 0; i < crowd.prompts.size(); ++i) {
    const int document = static_cast<int>(i) + 1;
    for (const ChunkKey& key : sim.Keys(document, crowd.prompts[i])) sim.tier(0).Hold(key);
    requests.push_back({.restore = sim.Request(document, crowd.prompts[i], Policy::kCake),
                        .at_s = 0,
                        .cancel_s = {}});
  }
  CrowdTimes times;
  for (const SimOutcome& outcome : sim.Run(requests)) {
    CHECK(outcome.done);
    times.total_s = std::max(times.total_s, outcome.seconds);
    times.mean_s += outcome.seconds / static_cast<double>(requests.size());
  }
  return times;
}

}  // namespace kvcake::bench
