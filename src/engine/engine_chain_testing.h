// Ranks for tests of prompts that several prefill, through the engine.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "comm/memory_comm.h"
#include "engine/engine_testing.h"

namespace kvcake {

// Divides what is longer than `least` tokens evenly.
class EvenPlanner : public ChainPlanner {
 public:
  std::optional<Partition> Plan(int origin, int tokens, int ranks) override {
    if (tokens <= least) return std::nullopt;
    return EvenPartition(tokens, ranks_after ? ranks_after(origin) : ranks);
  }
  void ForgetSlowness(int origin, const Partition& planned, int, int alone_from) override {
    told.push_back({origin, planned.tokens(), planned.ranks(), alone_from});
  }
  void Learn(const RankJob&, std::span<const RankReport> ranks) override {
    learnt.push_back(ranks.size());
  }
  bool Pays(int origin, const Partition& partition, int alone_from) override {
    asked.push_back({origin, partition.tokens(), alone_from});
    return pays;
  }
  bool pays = true;
  std::vector<std::array<int, 3>> asked;
  std::vector<std::array<int, 4>> told;
  bool learns_links() const override { return learns; }
  void LearnLinks(const Survey& survey) override {
    EXPECT_GT(survey.bytes_per_s, 0);
    ++surveys;
  }
  bool learns = true;
  int surveys = 0;
  int least = 6 * kChunk;
  std::function<int(int)> ranks_after = {};  // an origin; empty: all ranks
  std::vector<size_t> learnt;
};

// Goes on only when it is told, on any thread.
struct AdjustedClock : Clock {
  TimePoint Now() const override { return TimePoint() + Seconds(ahead_s); }
  std::atomic<int> ahead_s = 0;
};

// Ranks as threads, each with a world of its own; the last one's engine is the test's.
class EngineChainTest : public testing::Test {
 protected:
  void Start(int ranks, Tier* tier = nullptr, StoreWrites writes = StoreWrites::kAlways) {
    comms_ = NewMemoryComms(ranks);
    results_.resize(ranks - 1);
    for (int rank = 0; rank + 1 < ranks; ++rank) {
      workers_.emplace_back([this, rank] {
        World world(workers_tier_, {.per_token = workers_per_token_});
        const auto restore = [&](const RankJob& job) {
          if (at_restoring_) at_restoring_();
          const auto prefix = std::span(job.tokens).first(job.origin + 1);
          Request request{.prompt = {prefix.begin(), prefix.end()}, .max_tokens = 1};
          request.salt = job.salt;
          return world.engine->Answer(std::move(request)).map([](auto) {});
        };
        results_[rank] = WorkForChain(*comms_[rank], {.model = *world.model,
                                                      .pool = *world.pool,
                                                      .restore_prefix = restore,
                                                      .options = options_,
                                                      .kept = kept_});
      });
    }
    world_.emplace(tier, WorldOptions{.pages = pages_, .writes = writes, .clock = clock_});
    leader_.emplace(*comms_.back(), *world_->pool, options_);
    world_->engine->SetChain(&*leader_, &planner_);
  }
  void TearDown() override { End(); }
  // Before a tier of the test's goes.
  void End() {
    leader_.reset();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    world_.reset();
  }

  static inline const ChainOptions kOptions{
      .timeout = Seconds(10), .restore_timeout = Seconds(10), .authenticated = true};
  ChainOptions options_ = kOptions;
  std::function<void()> at_restoring_ = {};  // of each worker, as is the next
  std::function<int(std::span<const ChunkKey>)> kept_ = {};
  Tier* workers_tier_ = nullptr;      // what they load from; outlives them
  Seconds workers_per_token_{0};      // that each of them takes at least
  int pages_ = WorldOptions{}.pages;  // the leader's, as is the next
  const Clock* clock_ = &Clock::Real();
  EvenPlanner planner_;
  std::vector<std::unique_ptr<Comm>> comms_;
  std::vector<Status> results_;
  std::vector<std::thread> workers_;
  std::optional<World> world_;
  std::optional<ChainLeader> leader_;
};

}  // namespace kvcake
