#include "runahead/chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>
#include <tuple>

#include "comm/local_comms_testing.h"
#include "comm/memory_comm.h"
#include "kv/page_copier_testing.h"
#include "model/model_decorator_testing.h"
#include "model/transformer_testing.h"
#include "runahead/job_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

constexpr int kChunk = 32;

// A gate that does more.
class WatchedGate : public LayerGate {
 public:
  WatchedGate(LayerGate& inner, const std::function<void(int)>& at_layer, const Status& second)
      : inner_(inner), at_layer_(at_layer), second_(second) {}
  Status AfterKv(int layer) override {
    at_layer_(layer);
    return inner_.AfterKv(layer);
  }
  Status BeforeAttention(int layer) override {
    if (layer == 1) RETURN_IF_ERROR(second_);
    return inner_.BeforeAttention(layer);
  }

 private:
  LayerGate& inner_;
  const std::function<void(int)>& at_layer_;
  const Status& second_;
};

// A model whose gates say which layer they are at, and which may fail at the second one.
class WatchedModel : public ModelDecorator {
 public:
  WatchedModel(Model& inner, std::function<void(int)> at_layer, Status second)
      : ModelDecorator(inner), at_layer_(std::move(at_layer)), second_(std::move(second)) {}
  Result<std::span<const float>> Forward(std::span<const Slice> batch) override {
    WatchedGate gate(*batch[0].gate, at_layer_, second_);
    std::vector<Slice> watched(batch.begin(), batch.end());
    for (Slice& slice : watched) slice.gate = &gate;
    return inner_.Forward(watched);
  }

 private:
  const std::function<void(int)> at_layer_;
  const Status second_;
};

// A rank takes its pages for those of a device, with room for so many pieces on their way.
struct StagedRank {
  StagedRank(const KvLayout& layout, size_t pieces) : memory(layout.slab_payload_bytes() * pieces) {
    copier.Set({.delay_max = Seconds(1e-4)});
  }
  KvStaging staging() { return {.copier = &copier, .memory = memory}; }

  std::vector<std::byte> memory;
  testing_util::FakeCopier copier;
};

// What all ranks but the leader are given.
struct WorkerOptions {
  Seconds timeout{10};
  std::function<void(int rank)> at_restoring = {};
  Status second_layer_of_first = {};  // of rank 0's model
};

// Every rank a thread with a model of its own.
class Ranks {
 public:
  // `at_layer` is called by all but the leader. `staged`: pieces, of ranks that stage them; 0:
  // none.
  Ranks(const ModelConfig& config, int ranks, std::vector<std::unique_ptr<Comm>> comms,
        std::function<void(Ranks&, int rank, int layer)> at_layer = {}, size_t staged = 0,
        const WorkerOptions& workers = {})
      : comms_(std::move(comms)), results_(ranks), at_layer_(std::move(at_layer)) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Seconds timeout = rank + 1 < ranks ? workers.timeout : Seconds(10);
      rigs_.push_back(std::make_unique<Rig>(config, NumericPath::kF32, 1, kChunk));
      options_.push_back({.timeout = timeout, .restore_timeout = Seconds(10)});
      if (staged == 0) continue;
      staged_.push_back(std::make_unique<StagedRank>(rigs_[rank]->pages->layout(), staged));
      options_[rank].staging = staged_[rank]->staging();
    }
    for (int rank = 0; rank + 1 < ranks; ++rank) {
      threads_.emplace_back([this, rank, at_restoring = workers.at_restoring,
                             second = rank == 0 ? workers.second_layer_of_first : Status()] {
        Rig& rig = *rigs_[rank];
        const auto at_layer = [this, rank](int layer) {
          if (at_layer_) at_layer_(*this, rank, layer);
        };
        WatchedModel model(*rig.model, at_layer, second);
        const ChainWorker worker{.model = model,
                                 .pool = *rig.pages,
                                 .restore_prefix =
                                     [&](const RankJob& job) {
                                       if (at_restoring) at_restoring(rank);
                                       return Restore(rig, job);
                                     },
                                 .options = options_[rank]};
        results_[rank] = WorkForChain(*comms_[rank], worker);
      });
    }
  }
  ~Ranks() { Join(); }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  Comm& comm() { return *comms_.back(); }
  Rig& leader() { return *rigs_.back(); }
  const ChainOptions& options() const { return options_.back(); }
  const Status& result(int rank) const { return results_[rank]; }
  Comm& comm(int rank) { return *comms_[rank]; }

  // As a worker may: by computing it.
  static Status Restore(Rig& rig, const RankJob& job) {
    const std::vector<ChunkKey> keys = ChunkKeys(rig.model->identity().Root(), job.tokens, kChunk);
    PageTable table = rig.Draw(job.origin);
    const std::vector<PageId> ids = IdsOf(table);
    const Slice slice{.tokens = std::span(job.tokens).first(job.origin), .pages = ids};
    RETURN_IF_ERROR(rig.model->Forward(std::span(&slice, 1)).map([](auto) {}));
    for (size_t i = 0; i < table.size(); ++i) {
      table[i] = rig.pages->Publish(std::move(table[i]), keys[i], NumericPath::kF32);
    }
    return {};
  }

  // The logits of the job's last token, with the KV cache in `table`.
  Result<std::vector<float>> Prefill(ChainLeader& chain, const RankJob& job, PageTable* table) {
    Rig& rig = leader();
    *table = rig.Draw(static_cast<int64_t>(job.tokens.size()));
    const std::vector<PageId> ids = IdsOf(*table);
    if (job.origin > 0) {
      const Slice prefix{.tokens = std::span(job.tokens).first(job.origin), .pages = ids};
      RETURN_IF_ERROR(rig.model->Forward(std::span(&prefix, 1)).map([](auto) {}));
    }
    ASSIGN_OR_RETURN(const auto gate, chain.Start(job, ids));
    const auto batch = SlicesOf(job, job.places() - 1, ids, gate.get());
    const auto forward = rig.model->Forward(batch);
    ASSIGN_OR_RETURN(reports_, chain.End(*gate, forward.map([](auto) {})));
    return std::vector<float>(forward->begin(), forward->end());
  }
  const std::vector<RankReport>& reports() const { return reports_; }

 private:
  std::vector<std::unique_ptr<Comm>> comms_;
  std::vector<Status> results_;
  const std::function<void(Ranks&, int, int)> at_layer_;
  std::vector<ChainOptions> options_;  // of each rank, as is all that follows
  std::vector<std::unique_ptr<Rig>> rigs_;
  std::vector<std::unique_ptr<StagedRank>> staged_;
  std::vector<std::thread> threads_;
  std::vector<RankReport> reports_;
};

// Parts of at least one token, at any of them.
Partition RandomPartition(std::mt19937& rng, int tokens, int ranks) {
  Partition partition{.bounds = {0, tokens}};
  while (partition.ranks() < ranks) {
    const int bound = 1 + static_cast<int>(rng() % (tokens - 1));
    auto& bounds = partition.bounds;
    if (std::find(bounds.begin(), bounds.end(), bound) == bounds.end()) bounds.push_back(bound);
    std::sort(bounds.begin(), bounds.end());
  }
  return partition;
}

// All of a prompt, in parts of one size.
RankJob EvenJob(const ModelConfig& config, int tokens, int ranks) {
  return {.salt = "",
          .tokens = Prompt(1, tokens, config.vocab_size),
          .partition = EvenPartition(tokens, ranks)};
}

// Payload bytes that the rank at this place sends: in a chain all it has, to the next one; around a
// ring all but what the next one has itself.
uint64_t SentBytes(const RankJob& job, int place, uint64_t per_token) {
  if (job.method == RankMethod::kChain) return per_token * job.partition.bounds[place + 1];
  const int next = (place + 1) % job.places();
  uint64_t sent = job.partition.tokens();
  for (const TokenRange& range : RangesOf(job, next)) sent -= range.size();
  return per_token * sent;
}

// The same KV cache and logits as one process, bit for bit: by any method, any family, any number
// of ranks, any partition, after any prefix, with any room for what is on its way.
class EqualsOneProcessTest : public testing::TestWithParam<std::tuple<RankMethod, bool, bool>> {
 protected:
  // What a staged rank has no room for yet is kept aside by nobody, but for some hundred bytes of
  // a prompt's beginning.
  static std::vector<std::unique_ptr<Comm>> NewComms(int ranks) {
    return testing_util::NewLocalComms(/*tcp=*/std::get<1>(GetParam()), ranks,
                                       staged() ? 2000 : 64 << 20);
  }
  static bool staged() { return std::get<2>(GetParam()); }
};

TEST_P(EqualsOneProcessTest, BitForBit) {
  const RankMethod method = std::get<0>(GetParam());
  std::mt19937 rng(5);
  for (const auto& [name, config] : TinyZoo()) {
    SCOPED_TRACE(name);
    Rig alone(config, NumericPath::kF32, 1, kChunk);
    for (int ranks = 2; ranks <= 4; ++ranks) {
      // The second is behind the first, which goes on as long as somebody has room.
      const auto late = [](Ranks&, int rank, int) {
        if (rank == 1 && staged()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      };
      Ranks all(config, ranks, NewComms(ranks), late, staged() ? 2 + rng() % 8 : 0);
      {
        ChainLeader chain(all.comm(), *all.leader().pages, all.options());
        for (int round = 0; round < 2; ++round) {
          const int tokens = 40 + static_cast<int>(rng() % 200);
          const int origin = round == 0 ? 0 : static_cast<int>(rng() % (tokens / kChunk)) * kChunk;
          const int used = 2 + static_cast<int>(rng() % (ranks - 1));
          const int parts = method == RankMethod::kZigzag ? 2 * used : used;
          const RankJob job{.method = method,
                            .salt = "",
                            .tokens = Prompt(static_cast<int>(rng()), tokens, config.vocab_size),
                            .origin = origin,
                            .partition = RandomPartition(rng, tokens - origin, parts),
                            .dense = round == 1};
          SCOPED_TRACE(fmt::format("{} tokens after {} as {}", tokens, origin,
                                   FormatPartition(job.partition)));
          PageTable want_pages = alone.Draw(tokens), pages;
          const std::vector<float> want = RunAll(alone, job.tokens, IdsOf(want_pages));
          const auto logits = all.Prefill(chain, job, &pages);
          ASSERT_TRUE(logits) << logits.error().message;
          ASSERT_EQ(logits->size(), static_cast<size_t>(config.vocab_size));
          EXPECT_TRUE(SameBits(*logits, want.data() + want.size() - config.vocab_size));
          EXPECT_EQ(KvOf(all.leader(), IdsOf(pages), tokens),
                    KvOf(alone, IdsOf(want_pages), tokens));
          ASSERT_EQ(all.reports().size(), static_cast<size_t>(used - 1));
          const uint64_t per_token = all.leader().pages->layout().bytes_per_token();
          for (int place = 0; place + 1 < used; ++place) {
            EXPECT_EQ(all.reports()[place].sent_bytes, SentBytes(job, place, per_token));
          }
        }
      }
      all.Join();
      for (int rank = 0; rank + 1 < ranks; ++rank) {
        EXPECT_TRUE(all.result(rank)) << all.result(rank).error().message;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, EqualsOneProcessTest,
                         testing::Combine(testing::Values(RankMethod::kChain, RankMethod::kTsp,
                                                          RankMethod::kZigzag),
                                          testing::Bool(), testing::Bool()),
                         [](const auto& info) {
                           return RankMethodName(std::get<0>(info.param)) +
                                  std::string(std::get<1>(info.param) ? "_tcp" : "_memory") +
                                  (std::get<2>(info.param) ? "_staged" : "");
                         });

TEST(ChainTest, ALostRankEndsTheChainOnEveryOther) {
  const ModelConfig config = TinyConfig();
  Ranks all(config, 3, NewMemoryComms(3));
  ChainOptions options = all.options();
  std::vector<std::string> lost;
  options.on_lost = [&](const Error& why) { lost.push_back(why.message); };
  ChainLeader chain(all.comm(), *all.leader().pages, options);
  const RankJob job = EvenJob(config, 200, 3);
  PageTable pages;
  ASSERT_TRUE(all.Prefill(chain, job, &pages));
  all.comm(0).Close({ErrorCode::kIo, "the plug was pulled"});
  const auto failed = all.Prefill(chain, job, &pages);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message, HasSubstr("rank"));
  EXPECT_FALSE(chain.ok());
  EXPECT_THAT(lost, testing::ElementsAre(failed.error().message)) << "told once";
  all.Join();
  EXPECT_FALSE(all.result(0));
  EXPECT_FALSE(all.result(1));
}

// In the middle of a prompt: transfers of every rank are under way.
TEST(ChainTest, ARankIsLostAtEveryLayer) {
  const ModelConfig config = TinyConfig();
  for (int round = 0; round < 4; ++round) {
    const bool tcp = round % 2 == 1;
    const size_t staged = round < 2 ? 0 : 4;
    for (int lost_at = 0; lost_at < config.layers; ++lost_at) {
      SCOPED_TRACE(
          fmt::format("{}, {} staged, at layer {}", tcp ? "tcp" : "memory", staged, lost_at));
      Ranks all(
          config, 3, testing_util::NewLocalComms(tcp, 3),
          [lost_at](Ranks& ranks, int rank, int layer) {
            if (rank != 1 || layer != lost_at) return;
            ranks.comm(rank).Close({ErrorCode::kIo, "the plug was pulled"});
          },
          staged);
      ChainLeader chain(all.comm(), *all.leader().pages, all.options());
      const RankJob job = EvenJob(config, 400, 3);
      PageTable pages;
      EXPECT_FALSE(all.Prefill(chain, job, &pages));
      EXPECT_FALSE(chain.ok());
      all.Join();
      EXPECT_FALSE(all.result(0));
      EXPECT_FALSE(all.result(1));
    }
  }
}

// Nobody works for rank 0: nothing is taken there.
TEST(ChainTest, ASilentRankIsGivenUp) {
  const auto comms = NewMemoryComms(2);
  const ModelConfig config = TinyConfig();
  Rig rig(config, NumericPath::kF32, 1, kChunk);
  ChainLeader chain(*comms[1], *rig.pages, {.timeout = Seconds(0.05)});
  const RankJob job = EvenJob(config, 100, 2);
  const PageTable pages = rig.Draw(100);
  const auto gate = chain.Start(job, IdsOf(pages));
  ASSERT_FALSE(gate);
  EXPECT_EQ(gate.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(gate.error().message, HasSubstr("rank 0"));
  EXPECT_FALSE(chain.ok());
}

// Rank 1 has its prefix long before rank 0, and nothing of the chain comes to it until then.
TEST(ChainTest, ARankThatRestoresForLongIsNotLost) {
  const ModelConfig config = TinyConfig();
  static constexpr Seconds kTimeout(2);  // long for all else that it holds for
  const auto slowly = [](int rank) {
    if (rank == 0) std::this_thread::sleep_for(2 * kTimeout);
  };
  Ranks all(config, 3, NewMemoryComms(3), {}, 0, {.timeout = kTimeout, .at_restoring = slowly});
  const RankJob job{.salt = "",
                    .tokens = Prompt(1, 200, config.vocab_size),
                    .origin = 2 * kChunk,
                    .partition = EvenPartition(200 - 2 * kChunk, 3)};
  {
    ChainLeader chain(all.comm(), *all.leader().pages, all.options());
    PageTable pages;
    const auto logits = all.Prefill(chain, job, &pages);
    EXPECT_TRUE(logits) << logits.error().message;
  }
  all.Join();
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(all.result(rank)) << all.result(rank).error().message;
  }
}

// Rank 1 waits for rank 0 at each layer. Speeds are learnt from what it says.
TEST(ChainTest, WhatARankWaitsIsNoPartOfWhatItComputes) {
  const ModelConfig config = TinyConfig();
  const auto slowly = [](Ranks&, int rank, int) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  Ranks all(config, 3, NewMemoryComms(3), slowly);
  const TimePoint began = Clock::Real().Now();
  {
    ChainLeader chain(all.comm(), *all.leader().pages, all.options());
    PageTable pages;
    ASSERT_TRUE(all.Prefill(chain, EvenJob(config, 200, 3), &pages));
  }
  const RankReport& rank = all.reports()[1];
  EXPECT_GT(rank.wait_s, 0);
  EXPECT_LE(rank.compute_s + rank.wait_s, (Clock::Real().Now() - began).count());
}

// Links are measured between jobs, and jobs go on.
TEST(ChainTest, LinksAreMeasuredBetweenJobs) {
  const ModelConfig config = TinyConfig();
  for (const bool tcp : {false, true}) {
    Ranks all(config, 3, testing_util::NewLocalComms(tcp, 3));
    {
      ChainLeader chain(all.comm(), *all.leader().pages, all.options());
      const RankJob job = EvenJob(config, 200, 2);
      for (int round = 0; round < 2; ++round) {
        PageTable pages;
        EXPECT_TRUE(all.Prefill(chain, job, &pages));
        const auto survey = chain.SurveyLinks();
        ASSERT_TRUE(survey) << survey.error().message;
        EXPECT_GT(survey->bytes_per_s, 0);
      }
    }
    all.Join();
    EXPECT_TRUE(all.result(0) && all.result(1));
  }
}

// It has the job and sends nothing of it.
TEST(ChainTest, AGateDoesNotWaitForEver) {
  const auto comms = NewMemoryComms(2);
  Rig rig(TinyConfig(), NumericPath::kF32, 1, kChunk);
  const PageTable pages = rig.Draw(100);
  const std::vector<PageId> ids = IdsOf(pages);
  const RankJob job{.salt = "", .tokens = Prompt(1, 100), .partition = EvenPartition(100, 2)};
  const auto gate =
      KvGate::Create(*comms[1], *rig.pages, ids, RoutesOf(job, 1, 0, kChunk), Seconds(0.05));
  ASSERT_TRUE(gate);
  const Status status = (*gate)->BeforeAttention(0);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(status.error().message, HasSubstr("--rank-timeout"));
}

// Rank 1 has to receive and to send.
TEST(ChainTest, StagingOfOnePieceIsRefused) {
  const ModelConfig config = TinyConfig();
  Ranks all(config, 3, NewMemoryComms(3), {}, 1);
  ChainLeader chain(all.comm(), *all.leader().pages, all.options());
  const RankJob job = EvenJob(config, 400, 3);
  PageTable pages;
  const auto failed = all.Prefill(chain, job, &pages);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message, HasSubstr("--staging-capacity")) << "the leader hears of it";
  all.Join();
  ASSERT_FALSE(all.result(1));
  EXPECT_EQ(all.result(1).error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(all.result(1).error().message, HasSubstr("--staging-capacity"));
}

// With transfers under way, which end, too.
TEST(ChainTest, ARankWhoseModelFailsSaysWhy) {
  const ModelConfig config = TinyConfig();
  const Status lost = Fail(ErrorCode::kIo, "the device is lost");
  Ranks all(config, 3, NewMemoryComms(3), {}, 0, {.second_layer_of_first = lost});
  ChainLeader chain(all.comm(), *all.leader().pages, all.options());
  const RankJob job = EvenJob(config, 400, 3);
  PageTable pages;
  const auto failed = all.Prefill(chain, job, &pages);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message, HasSubstr("the device is lost"));
  all.Join();
  EXPECT_THAT(all.result(1).error().message, HasSubstr("the device is lost"));
}

TEST(ChainTest, ARankThatCannotDoItsPartSaysWhy) {
  const ModelConfig config = TinyConfig();
  Ranks all(config, 2, NewMemoryComms(2));
  ChainLeader chain(all.comm(), *all.leader().pages, all.options());
  // Beyond the 512 tokens that a test's model takes at once.
  RankJob job{.salt = "",
              .tokens = Prompt(1, 700, config.vocab_size),
              .partition = {.bounds = {0, 600, 700}}};
  PageTable pages;
  EXPECT_FALSE(all.Prefill(chain, job, &pages));
  all.Join();
  ASSERT_FALSE(all.result(0));
  EXPECT_THAT(all.result(0).error().message, HasSubstr("600 tokens"));
}

}  // namespace
}  // namespace kvcake
