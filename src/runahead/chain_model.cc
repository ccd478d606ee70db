#include "runahead/chain_model.h"

#include <algorithm>

#include "base/check.h"

namespace kvcake {
namespace {

// What a rank does of every layer, before and after its KV exists.
struct LayerWork {
  double before_s = 0, after_s = 0;
};

LayerWork SplitLayer(const ChainCost& cost, const RankCost& rank, double tokens, double seconds) {
  const double qkv_s = cost.qkv_share * rank.time.b * tokens / rank.speed;
  return {.before_s = qkv_s / cost.layers, .after_s = (seconds - qkv_s) / cost.layers};
}

struct Piece {
  int layer = 0, origin = 0;
  double ready_s = 0;  // at the rank that sends it next
};

bool ReadyBefore(const Piece& a, const Piece& b) { return a.ready_s < b.ready_s; }

// The rank's layers, given what has come to it.
RankTimes ComputeTimes(const ChainCost& cost, int rank, const Partition& partition,
                       const std::vector<Piece>& arrived) {
  const RankCost& own = cost.ranks[rank];
  RankTimes times;
  times.compute_s = own.SecondsFor(partition.begin(rank), partition.size(rank));
  const LayerWork work = SplitLayer(cost, own, partition.size(rank), times.compute_s);
  times.layers.resize(cost.layers);
  for (const Piece& piece : arrived) {
    double& prefix_s = times.layers[piece.layer].prefix_s;
    prefix_s = std::max(prefix_s, piece.ready_s);
  }
  double now_s = 0;
  for (LayerTimes& layer : times.layers) {
    layer.begin_s = now_s;
    layer.kv_s = now_s + work.before_s;
    const double attend_s = std::max(layer.kv_s, layer.prefix_s);
    times.wait_s += attend_s - layer.kv_s;
    layer.end_s = now_s = attend_s + work.after_s;
  }
  return times;
}

// Sends what came and what is the rank's own, first ready first; returns when each piece is at the
// next rank.
std::vector<Piece> Send(const ChainCost& cost, int rank, const Partition& partition,
                        const std::vector<Piece>& arrived, RankTimes& times) {
  std::vector<Piece> own;
  for (int layer = 0; layer < cost.layers; ++layer) {
    own.push_back({.layer = layer, .origin = rank, .ready_s = times.layers[layer].kv_s});
  }
  std::vector<Piece> sent(arrived.size() + own.size());
  std::merge(arrived.begin(), arrived.end(), own.begin(), own.end(), sent.begin(), ReadyBefore);
  double free_s = 0;
  times.sends.reserve(sent.size());
  for (Piece& piece : sent) {
    const double bytes = cost.bytes_per_token_layer * partition.size(piece.origin);
    const double begin_s = std::max(free_s, piece.ready_s);
    piece.ready_s = free_s = begin_s + cost.link.SecondsFor(bytes);
    times.sends.push_back(
        {.layer = piece.layer, .origin = piece.origin, .begin_s = begin_s, .end_s = free_s});
    times.sent_bytes += bytes;
  }
  return sent;
}

void Finish(ChainTimes& chain, int last_rank) {
  for (const RankTimes& rank : chain.ranks) {
    chain.bound_s = std::max(chain.bound_s, rank.compute_s);
    chain.sent_bytes += rank.sent_bytes;
  }
  chain.ttft_s = chain.ranks[last_rank].end_s();
}

// Seconds of a rank of an all-gather alone.
double GatherSeconds(const ChainCost& cost, int rank, const Partition& parts, GatherMethod method) {
  const RankCost& own = cost.ranks[rank];
  const int mirror = parts.ranks() - 1 - rank;  // of a zigzag
  const bool pair = method == GatherMethod::kZigzag;
  if (own.time.attention == SliceTime::Attention::kDense) {
    const double rows = parts.size(rank) + (pair ? parts.size(mirror) : 0);
    return own.SecondsFor(parts.tokens() - rows, rows);
  }
  double seconds = own.SecondsFor(parts.begin(rank), parts.size(rank));
  if (pair) {
    seconds += own.time.MarginalSecondsFor(parts.begin(mirror), parts.size(mirror)) / own.speed;
  }
  return seconds;
}

}  // namespace

ChainTimes PredictChain(const ChainCost& cost, const Partition& partition) {
  const int ranks = static_cast<int>(cost.ranks.size());
  CHECK(ranks >= 1 && partition.ranks() == ranks);
  ChainTimes chain;
  std::vector<Piece> arrived;  // at the rank, in this order
  for (int rank = 0; rank < ranks; ++rank) {
    chain.ranks.push_back(ComputeTimes(cost, rank, partition, arrived));
    if (rank + 1 < ranks) arrived = Send(cost, rank, partition, arrived, chain.ranks.back());
  }
  Finish(chain, ranks - 1);
  return chain;
}

ChainTimes PredictGather(const ChainCost& cost, int tokens, GatherMethod method) {
  const int ranks = static_cast<int>(cost.ranks.size());
  const bool zigzag = method == GatherMethod::kZigzag;
  CHECK(ranks >= 1 && tokens >= (zigzag ? 2 : 1) * ranks);
  const Partition parts = EvenPartition(tokens, zigzag ? 2 * ranks : ranks);
  std::vector<LayerWork> works;
  ChainTimes chain;
  chain.ranks.resize(ranks);
  double step_bytes = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const int mirror = parts.ranks() - 1 - rank;
    const double rows = parts.size(rank) + (zigzag ? parts.size(mirror) : 0);
    RankTimes& times = chain.ranks[rank];
    times.compute_s = GatherSeconds(cost, rank, parts, method);
    works.push_back(SplitLayer(cost, cost.ranks[rank], rows, times.compute_s));
    times.sent_bytes = (ranks - 1) * rows * cost.bytes_per_token();
    step_bytes = std::max(step_bytes, rows * cost.bytes_per_token_layer);
  }
  const double gather_s = ranks == 1 ? 0 : (ranks - 1) * cost.link.SecondsFor(step_bytes);
  std::vector<double> now_s(ranks, 0.0);
  for (int layer = 0; layer < cost.layers; ++layer) {
    double all_s = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      all_s = std::max(all_s, now_s[rank] + works[rank].before_s);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      RankTimes& times = chain.ranks[rank];
      LayerTimes at{.begin_s = now_s[rank], .kv_s = now_s[rank] + works[rank].before_s};
      at.prefix_s = all_s + gather_s;
      times.wait_s += at.prefix_s - at.kv_s;
      at.end_s = now_s[rank] = at.prefix_s + works[rank].after_s;
      times.layers.push_back(at);
    }
  }
  Finish(chain, zigzag ? 0 : ranks - 1);
  return chain;
}

}  // namespace kvcake
