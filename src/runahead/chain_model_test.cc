#include "runahead/chain_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

#include "runahead/chain_testing.h"

namespace kvcake {
namespace {

// The chain as events, each thing started by what it waited for. Returns when each rank ends.
class EventChain {
 public:
  EventChain(const ChainCost& cost, const Partition& partition)
      : cost_(cost), partition_(partition), ranks_(partition.ranks()) {
    come_.assign(ranks_, std::vector<int>(cost.layers, 0));
    layer_.assign(ranks_, 0);
    has_kv_.assign(ranks_, false);
    queue_.resize(ranks_);
    busy_.assign(ranks_, false);
    ends_.assign(ranks_, 0);
    for (int r = 0; r < ranks_; ++r) At(0, [this, r] { Project(r); });
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      event.run();
    }
  }
  const std::vector<double>& ends() const { return ends_; }
  double sent_bytes() const { return sent_bytes_; }

 private:
  struct Event {
    double at;
    int number;  // of the same time the first made comes first
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };
  struct Message {
    int layer, origin;
  };
  void At(double t, std::function<void()> run) { events_.push({t, count_++, std::move(run)}); }
  double LayerSeconds(int r) const {
    return cost_.ranks[r].SecondsFor(partition_.begin(r), partition_.size(r)) / cost_.layers;
  }
  double QkvSeconds(int r) const {
    const RankCost& rank = cost_.ranks[r];
    return cost_.qkv_share * rank.time.b * partition_.size(r) / rank.speed / cost_.layers;
  }
  void Project(int r) {
    At(now_ + QkvSeconds(r), [this, r] {
      has_kv_[r] = true;
      Offer(r, {layer_[r], r});
      Attend(r);
    });
  }
  void Attend(int r) {
    if (!has_kv_[r] || come_[r][layer_[r]] < r) return;
    has_kv_[r] = false;
    At(now_ + LayerSeconds(r) - QkvSeconds(r), [this, r] {
      ends_[r] = now_;
      if (++layer_[r] < cost_.layers) Project(r);
    });
  }
  void Offer(int r, Message message) {
    if (r + 1 == ranks_) return;
    queue_[r].push(message);
    SendNext(r);
  }
  void SendNext(int r) {
    if (busy_[r] || queue_[r].empty()) return;
    busy_[r] = true;
    const Message message = queue_[r].front();
    queue_[r].pop();
    const double bytes = cost_.bytes_per_token_layer * partition_.size(message.origin);
    sent_bytes_ += bytes;
    At(now_ + cost_.link.SecondsFor(bytes), [this, r, message] {
      busy_[r] = false;
      Offer(r + 1, message);
      ++come_[r + 1][message.layer];
      if (layer_[r + 1] == message.layer) Attend(r + 1);
      SendNext(r);
    });
  }

  const ChainCost& cost_;
  const Partition& partition_;
  const int ranks_;
  double now_ = 0, sent_bytes_ = 0;
  int count_ = 0;
  std::priority_queue<Event> events_;
  std::vector<std::vector<int>> come_;  // pieces, by rank and layer
  std::vector<int> layer_;
  std::vector<bool> has_kv_, busy_;
  std::vector<std::queue<Message>> queue_;
  std::vector<double> ends_;
};

Partition RandomSplit(std::mt19937& rng, int tokens, int ranks) {
  std::vector<double> bounds{0};
  for (int i = 1; i < ranks; ++i) bounds.push_back(static_cast<double>(rng() % tokens));
  std::sort(bounds.begin(), bounds.end());
  bounds.push_back(tokens);
  return RoundedPartition(bounds);
}

// Two layers; a token takes 1 s (QKV a fourth of it) and 4 bytes a layer, whatever comes before it.
ChainCost SmallChain(int ranks, double bytes_per_s) {
  ChainCost cost;
  cost.ranks.assign(ranks, RankCost{.time = {.b = 2}});
  cost.link.bytes_per_s = bytes_per_s;
  cost.layers = 2;
  cost.bytes_per_token_layer = 4;
  return cost;
}

TEST(ChainModelTest, TwoRanksByHand) {
  // Rank 0: 4 tokens, 1 s of QKV and 3 s of the rest a layer. Rank 1: 2 tokens, 0.5 s and 1.5 s.
  const ChainTimes chain = PredictChain(SmallChain(2, 8), {{0, 4, 6}});
  const RankTimes& first = chain.ranks[0];
  EXPECT_DOUBLE_EQ(first.layers[0].kv_s, 1);
  EXPECT_DOUBLE_EQ(first.layers[1].kv_s, 5);
  EXPECT_DOUBLE_EQ(first.end_s(), 8);
  EXPECT_DOUBLE_EQ(first.wait_s, 0);
  ASSERT_EQ(first.sends.size(), 2u);
  EXPECT_DOUBLE_EQ(first.sends[1].begin_s, 5);
  EXPECT_DOUBLE_EQ(first.sends[1].end_s, 7);
  const RankTimes& second = chain.ranks[1];
  EXPECT_DOUBLE_EQ(second.layers[0].prefix_s, 3);
  EXPECT_DOUBLE_EQ(second.layers[0].end_s, 4.5);
  EXPECT_DOUBLE_EQ(second.layers[1].kv_s, 5);
  EXPECT_DOUBLE_EQ(second.layers[1].prefix_s, 7);
  EXPECT_DOUBLE_EQ(chain.ttft_s, 8.5);
  EXPECT_DOUBLE_EQ(second.wait_s, 2.5 + 2);
  EXPECT_DOUBLE_EQ(chain.bound_s, 8);
  EXPECT_DOUBLE_EQ(chain.sent_bytes, 2 * 4 * 4);
}

TEST(ChainModelTest, ALinkSendsOneThingAfterTheOther) {
  // Each rank has 1 token: QKV 0.25 s, the rest 0.75 s a layer; a piece takes 1 s on a link.
  const ChainTimes chain = PredictChain(SmallChain(3, 4), {{0, 1, 2, 3}});
  // Rank 1's own piece is ready first; rank 0's comes at 1.25 and goes on while rank 1 attends.
  const auto& sends = chain.ranks[1].sends;
  ASSERT_EQ(sends.size(), 4u);
  EXPECT_EQ(sends[0].origin, 1);
  EXPECT_DOUBLE_EQ(sends[0].begin_s, 0.25);
  EXPECT_EQ(sends[1].origin, 0);
  EXPECT_DOUBLE_EQ(sends[1].begin_s, 1.25);
  EXPECT_DOUBLE_EQ(chain.ranks[2].layers[0].prefix_s, 2.25);
  // Layer 1's are both ready there at 2.25: what has come goes first.
  EXPECT_DOUBLE_EQ(chain.ranks[1].layers[1].kv_s, 2.25);
  EXPECT_EQ(sends[2].origin, 0);
  EXPECT_DOUBLE_EQ(chain.ranks[2].layers[1].prefix_s, 4.25);
  EXPECT_DOUBLE_EQ(chain.ttft_s, 5);
}

TEST(ChainModelTest, IsWhatEventsSay) {
  std::mt19937 rng(3);
  for (int i = 0; i < 500; ++i) {
    const int ranks = 1 + static_cast<int>(rng() % 6),
              tokens = ranks + static_cast<int>(rng() % 9999);
    const ChainCost cost = RandomChain(rng, ranks);
    const Partition partition = RandomSplit(rng, tokens, ranks);
    const ChainTimes chain = PredictChain(cost, partition);
    const EventChain events(cost, partition);
    for (int r = 0; r < ranks; ++r) {
      ASSERT_NEAR(chain.ranks[r].end_s() / events.ends()[r], 1, 1e-9) << "chain " << i;
      EXPECT_NEAR(chain.ranks[r].end_s(), chain.ranks[r].compute_s + chain.ranks[r].wait_s,
                  1e-9 * chain.ttft_s);
    }
    EXPECT_DOUBLE_EQ(chain.sent_bytes, events.sent_bytes());
    EXPECT_GE(chain.ttft_s, chain.ranks.back().compute_s * (1 - 1e-9));
  }
}

TEST(ChainModelTest, TrafficIsThePapers) {
  const double token_bytes = 2 * 4;  // layers
  const ChainCost cost = SmallChain(4, 1e9);
  const Partition uneven{{0, 500, 800, 950, 1000}};
  EXPECT_DOUBLE_EQ(PredictChain(cost, uneven).sent_bytes, (500 + 800 + 950) * token_bytes);
  EXPECT_DOUBLE_EQ(PredictChain(cost, EvenPartition(1000, 4)).sent_bytes, 1.5 * 1000 * token_bytes);
  for (const GatherMethod method : {GatherMethod::kTsp, GatherMethod::kZigzag}) {
    EXPECT_DOUBLE_EQ(PredictGather(cost, 1000, method).sent_bytes, 3 * 1000 * token_bytes);
  }
}

TEST(ChainModelTest, GathersByHand) {
  ChainCost cost = SmallChain(2, 16);
  cost.ranks.assign(2, RankCost{.time = {.b = 2, .a = 1}});
  const auto compute = [&](GatherMethod method, SliceTime::Attention attention, int rank) {
    for (RankCost& r : cost.ranks) r.time.attention = attention;
    return PredictGather(cost, 8, method).ranks[rank].compute_s;
  };
  const auto causal = SliceTime::Attention::kCausal, dense = SliceTime::Attention::kDense;
  EXPECT_DOUBLE_EQ(compute(GatherMethod::kTsp, causal, 0), 8 + 16);
  EXPECT_DOUBLE_EQ(compute(GatherMethod::kTsp, causal, 1), 8 + (64 - 16));
  EXPECT_DOUBLE_EQ(compute(GatherMethod::kTsp, dense, 0), 8 + 4 * 8);
  EXPECT_DOUBLE_EQ(compute(GatherMethod::kTsp, dense, 1), 8 + 4 * 8);
  // Parts of two tokens: 0 and 3, 1 and 2.
  EXPECT_DOUBLE_EQ(compute(GatherMethod::kZigzag, causal, 0), 8 + 4 + (64 - 36));
  EXPECT_DOUBLE_EQ(compute(GatherMethod::kZigzag, causal, 1), 8 + (16 - 4) + (36 - 16));
  EXPECT_DOUBLE_EQ(compute(GatherMethod::kZigzag, dense, 1), 8 + 4 * 8);

  // Dense, of 2 layers: QKV 1 s, then 4 tokens' 16 bytes in 1 s, then 19 s.
  const ChainTimes tsp = PredictGather(cost, 8, GatherMethod::kTsp);
  EXPECT_DOUBLE_EQ(tsp.ranks[0].layers[0].prefix_s, 2);
  EXPECT_DOUBLE_EQ(tsp.ttft_s, 2 * 21);
  EXPECT_DOUBLE_EQ(tsp.bound_s, 40);
  // A rank at half the speed keeps the other waiting.
  cost.ranks[0].speed = 0.5;
  const ChainTimes slow = PredictGather(cost, 8, GatherMethod::kTsp);
  EXPECT_DOUBLE_EQ(slow.ranks[0].end_s(), 2 * 41);
  EXPECT_DOUBLE_EQ(slow.ranks[1].wait_s, (3 - 1) + (44 - 23));
  // The first token is the prompt's last one's: of a zigzag the first rank has that, else the last.
  EXPECT_DOUBLE_EQ(slow.ttft_s, slow.ranks[1].end_s());
  const ChainTimes zigzag = PredictGather(cost, 8, GatherMethod::kZigzag);
  EXPECT_DOUBLE_EQ(zigzag.ttft_s, zigzag.ranks[0].end_s());
  EXPECT_GT(zigzag.ttft_s, zigzag.ranks[1].end_s());
}

TEST(ChainModelTest, OneRankSendsNothing) {
  const ChainCost cost = SmallChain(1, 1);
  for (const ChainTimes& chain :
       {PredictChain(cost, {{0, 8}}), PredictGather(cost, 8, GatherMethod::kTsp),
        PredictGather(cost, 8, GatherMethod::kZigzag)}) {
    EXPECT_DOUBLE_EQ(chain.ttft_s, 16);
    EXPECT_DOUBLE_EQ(chain.bound_s, 16);
    EXPECT_DOUBLE_EQ(chain.sent_bytes, 0);
  }
}

TEST(ChainModelTest, CausalZigzagIsBalancedAndTspIsNot) {
  ChainCost cost = SmallChain(4, std::numeric_limits<double>::infinity());
  cost.ranks.assign(4, RankCost{.time = {.b = 1, .a = 0.01}});
  const auto spread = [&](GatherMethod method) {
    const ChainTimes chain = PredictGather(cost, 8000, method);
    return chain.ranks[3].compute_s / chain.ranks[0].compute_s;
  };
  EXPECT_NEAR(spread(GatherMethod::kZigzag), 1, 1e-9);
  EXPECT_GT(spread(GatherMethod::kTsp), 2);
}

}  // namespace
}  // namespace kvcake
