// What ranks say that their part of a prompt took.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "comm/memory_comm.h"
#include "model/transformer_testing.h"
#include "runahead/chain.h"
#include "runahead/job_message.h"

namespace kvcake {
namespace {

constexpr int kReportChunk = 32;

// A prompt's job for two ranks, the first of which is played: it takes the job.
struct PlayedRank {
  explicit PlayedRank(RankJob asked = {}) : job(std::move(asked)) {
    job.tokens = Prompt(1, 100, TinyConfig().vocab_size);
    job.partition = EvenPartition(100 - job.origin, 2);
    body.resize(BodyBytes(HeaderOf(job)));
    comms[0]->Receive(1, 0, std::as_writable_bytes(std::span(&header, 1)), took.Add(1));
    comms[0]->Receive(1, 1, body, took.Add(1));
  }
  // What it takes behind the job, a next one's header or why there is none.
  void TakeNext(TransferWait* wait) {
    comms[0]->Receive(1, 0, std::as_writable_bytes(std::span(&next, 1)), wait->Add(1));
  }
  template <typename Message>
  void Say(int tag, const Message& what) {
    comms[0]->Send(1, tag, std::as_bytes(std::span(&what, 1)), took.Add(1));
  }
  Status Took() { return took.Wait(Clock::Real().Now() + Seconds(60), "a job"); }

  const std::vector<std::unique_ptr<Comm>> comms = NewMemoryComms(2);
  Rig rig{TinyConfig(), NumericPath::kF32, 1, kReportChunk};
  RankJob job;
  JobHeader header, next;
  std::vector<std::byte> body;
  TransferWait took;
};

// Plays a rank that has no KV cache to send: what its report makes of the job.
Status EndWith(const RankReport& report) {
  PlayedRank rank({.exchange = false});
  rank.TakeNext(&rank.took);
  const JobAnswer ready;
  rank.Say(2, ready);
  rank.Say(3, report);
  Status ended;
  {
    ChainLeader chain(*rank.comms[1], *rank.rig.pages, {.timeout = Seconds(60)});
    const PageTable pages = rank.rig.Draw(100);
    const std::vector<PageId> ids = IdsOf(pages);
    const auto gate = chain.Start(rank.job, ids);
    EXPECT_TRUE(gate) << gate.error().message;
    ended = chain.End(**gate, {}).map([](auto) {});
    EXPECT_EQ(chain.ok(), ended.has_value());
  }
  (void)rank.Took();
  return ended;
}

TEST(ChainReportTest, ARankThatReportsWhatCannotBeIsLost) {
  EXPECT_TRUE(EndWith({.compute_s = 1, .wait_s = 2}));
  for (const double nonsense : {-1.0, 1e9, double{NAN}}) {
    for (const RankReport& report :
         {RankReport{.compute_s = nonsense}, RankReport{.wait_s = nonsense}}) {
      const Status ended = EndWith(report);
      ASSERT_FALSE(ended) << nonsense;
      EXPECT_EQ(ended.error().code, ErrorCode::kCorrupt);
    }
  }
}

// One that takes a job and says nothing.
void ExpectGivenUp(RankJob job, const ChainOptions& options) {
  PlayedRank rank(std::move(job));
  ChainLeader chain(*rank.comms[1], *rank.rig.pages, options);
  const PageTable pages = rank.rig.Draw(100);
  const auto gate = chain.Start(rank.job, IdsOf(pages));
  ASSERT_FALSE(gate);
  EXPECT_EQ(gate.error().code, ErrorCode::kDeadline);
  EXPECT_FALSE(chain.ok());
  EXPECT_TRUE(rank.Took());
}

// It has nothing to restore, and as long as that may take nobody waits for it.
TEST(ChainReportTest, ARankThatTakesAJobAndSaysNothingIsGivenUp) {
  ExpectGivenUp({}, {.timeout = Seconds(0.05), .restore_timeout = Seconds(3600)});
}

// It has a prompt's beginning to restore, for which there is a time of its own.
TEST(ChainReportTest, ARankThatRestoresForEverIsGivenUp) {
  ExpectGivenUp({.origin = kReportChunk},
                {.timeout = Seconds(3600), .restore_timeout = Seconds(0.05)});
}

// The leader's own: nobody waits for the rest of a prompt that it cannot end.
TEST(ChainReportTest, AForwardPassThatFailsEndsTheChainAndOthersHearWhy) {
  PlayedRank rank;
  TransferWait waits;
  rank.TakeNext(&waits);
  const JobAnswer ready;
  rank.Say(2, ready);
  std::vector<std::string> lost;
  ChainLeader chain(*rank.comms[1], *rank.rig.pages,
                    {.timeout = Seconds(3600),
                     .on_lost = [&](const Error& why) { lost.push_back(why.message); }});
  const PageTable pages = rank.rig.Draw(100);
  const std::vector<PageId> ids = IdsOf(pages);
  const auto gate = chain.Start(rank.job, ids);
  ASSERT_TRUE(gate) << gate.error().message;
  const auto ended = chain.End(**gate, Fail(ErrorCode::kIo, "the device is lost"));
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().message, "the device is lost");
  EXPECT_FALSE(chain.ok());
  EXPECT_EQ(lost, std::vector<std::string>{"the device is lost"});
  const Status heard = waits.Wait(Clock::Real().Now() + Seconds(60), "the end");
  ASSERT_FALSE(heard);
  EXPECT_EQ(heard.error().message, "rank 1 is gone: the device is lost");
  EXPECT_TRUE(rank.Took());
}

// A second passes with each look at it.
struct TickingClock : Clock {
  TimePoint Now() const override { return TimePoint() + Seconds(++looks); }
  mutable std::atomic<int> looks = 0;
};

// Speeds are learnt from what is left of a forward pass.
TEST(ChainReportTest, TheTimeThatIsWaitedForOthersIsToldApart) {
  const auto comms = NewMemoryComms(2);
  const TickingClock clock;
  Rig first(TinyConfig(), NumericPath::kF32, 1, kReportChunk),
      last(TinyConfig(), NumericPath::kF32, 1, kReportChunk);
  const RankJob job{.salt = "", .tokens = Prompt(1, 100), .partition = EvenPartition(100, 2)};
  const PageTable sent = first.Draw(100), come = last.Draw(100);
  const std::vector<PageId> sent_ids = IdsOf(sent), come_ids = IdsOf(come);
  const auto from = KvGate::Create(*comms[0], *first.pages, sent_ids,
                                   RoutesOf(job, 0, 0, kReportChunk), Seconds(60));
  const auto to = KvGate::Create(*comms[1], *last.pages, come_ids,
                                 RoutesOf(job, 1, 0, kReportChunk), Seconds(60), {}, clock);
  const int layers = last.pages->layout().layers;
  for (int layer = 0; layer < layers; ++layer) {
    ASSERT_TRUE((*from)->AfterKv(layer) && (*to)->AfterKv(layer));
    ASSERT_TRUE((*from)->BeforeAttention(layer) && (*to)->BeforeAttention(layer));
  }
  ASSERT_TRUE((*from)->Finish() && (*to)->Finish());
  EXPECT_GE((*to)->waited(), Seconds(layers));
}

}  // namespace
}  // namespace kvcake
