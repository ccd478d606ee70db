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

// Plays a rank that has no KV cache to send: what its report makes of the job.
Status EndWith(const RankReport& report) {
  const auto comms = NewMemoryComms(2);
  const ModelConfig config = TinyConfig();
  Rig rig(config, NumericPath::kF32, 1, kReportChunk);
  const RankJob job{.salt = "",
                    .tokens = Prompt(1, 100, config.vocab_size),
                    .partition = EvenPartition(100, 2),
                    .exchange = false};
  JobHeader header, end;
  std::vector<std::byte> body(BodyBytes(HeaderOf(job)));
  const JobAnswer ready;
  TransferWait rank;
  comms[0]->Receive(1, 0, std::as_writable_bytes(std::span(&header, 1)), rank.Add(1));
  comms[0]->Receive(1, 1, body, rank.Add(1));
  comms[0]->Receive(1, 0, std::as_writable_bytes(std::span(&end, 1)), rank.Add(1));
  comms[0]->Send(1, 2, std::as_bytes(std::span(&ready, 1)), rank.Add(1));
  comms[0]->Send(1, 3, std::as_bytes(std::span(&report, 1)), rank.Add(1));
  Status ended;
  {
    ChainLeader chain(*comms[1], *rig.pages, {.timeout = Seconds(60)});
    const PageTable pages = rig.Draw(100);
    const std::vector<PageId> ids = IdsOf(pages);
    const auto gate = chain.Start(job, ids);
    EXPECT_TRUE(gate) << gate.error().message;
    ended = chain.End(**gate, {}).map([](auto) {});
    EXPECT_EQ(chain.ok(), ended.has_value());
  }
  (void)rank.Wait(Clock::Real().Now() + Seconds(60), "a job");
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

// It has nothing to restore, and as long as that may take nobody waits for it.
TEST(ChainReportTest, ARankThatTakesAJobAndSaysNothingIsGivenUp) {
  const auto comms = NewMemoryComms(2);
  const ModelConfig config = TinyConfig();
  Rig rig(config, NumericPath::kF32, 1, kReportChunk);
  const RankJob job{
      .salt = "", .tokens = Prompt(1, 100, config.vocab_size), .partition = EvenPartition(100, 2)};
  JobHeader header;
  std::vector<std::byte> body(BodyBytes(HeaderOf(job)));
  TransferWait rank;
  comms[0]->Receive(1, 0, std::as_writable_bytes(std::span(&header, 1)), rank.Add(1));
  comms[0]->Receive(1, 1, body, rank.Add(1));
  ChainLeader chain(*comms[1], *rig.pages,
                    {.timeout = Seconds(0.05), .restore_timeout = Seconds(3600)});
  const PageTable pages = rig.Draw(100);
  const auto gate = chain.Start(job, IdsOf(pages));
  ASSERT_FALSE(gate);
  EXPECT_EQ(gate.error().code, ErrorCode::kDeadline);
  EXPECT_FALSE(chain.ok());
  EXPECT_TRUE(rank.Wait(Clock::Real().Now() + Seconds(60), "a job"));
}

// It has a prompt's beginning to restore, for which there is a time of its own.
TEST(ChainReportTest, ARankThatRestoresForEverIsGivenUp) {
  const auto comms = NewMemoryComms(2);
  const ModelConfig config = TinyConfig();
  Rig rig(config, NumericPath::kF32, 1, kReportChunk);
  const RankJob job{.salt = "",
                    .tokens = Prompt(1, 100, config.vocab_size),
                    .origin = kReportChunk,
                    .partition = EvenPartition(100 - kReportChunk, 2)};
  JobHeader header;
  std::vector<std::byte> body(BodyBytes(HeaderOf(job)));
  TransferWait rank;
  comms[0]->Receive(1, 0, std::as_writable_bytes(std::span(&header, 1)), rank.Add(1));
  comms[0]->Receive(1, 1, body, rank.Add(1));
  ChainLeader chain(*comms[1], *rig.pages,
                    {.timeout = Seconds(3600), .restore_timeout = Seconds(0.05)});
  const PageTable pages = rig.Draw(100);
  const auto gate = chain.Start(job, IdsOf(pages));
  ASSERT_FALSE(gate);
  EXPECT_EQ(gate.error().code, ErrorCode::kDeadline);
  EXPECT_FALSE(chain.ok());
  EXPECT_TRUE(rank.Wait(Clock::Real().Now() + Seconds(60), "a job"));
}

// The leader's own: nobody waits for the rest of a prompt that it cannot end.
TEST(ChainReportTest, AForwardPassThatFailsEndsTheChainAndOthersHearWhy) {
  const auto comms = NewMemoryComms(2);
  const ModelConfig config = TinyConfig();
  Rig rig(config, NumericPath::kF32, 1, kReportChunk);
  const RankJob job{
      .salt = "", .tokens = Prompt(1, 100, config.vocab_size), .partition = EvenPartition(100, 2)};
  JobHeader header, next;
  std::vector<std::byte> body(BodyBytes(HeaderOf(job)));
  const JobAnswer ready;
  TransferWait rank, waits;
  comms[0]->Receive(1, 0, std::as_writable_bytes(std::span(&header, 1)), rank.Add(1));
  comms[0]->Receive(1, 1, body, rank.Add(1));
  comms[0]->Receive(1, 0, std::as_writable_bytes(std::span(&next, 1)), waits.Add(1));
  comms[0]->Send(1, 2, std::as_bytes(std::span(&ready, 1)), rank.Add(1));
  std::vector<std::string> lost;
  ChainLeader chain(*comms[1], *rig.pages,
                    {.timeout = Seconds(3600),
                     .on_lost = [&](const Error& why) { lost.push_back(why.message); }});
  const PageTable pages = rig.Draw(100);
  const std::vector<PageId> ids = IdsOf(pages);
  const auto gate = chain.Start(job, ids);
  ASSERT_TRUE(gate) << gate.error().message;
  const auto ended = chain.End(**gate, Fail(ErrorCode::kIo, "the device is lost"));
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().message, "the device is lost");
  EXPECT_FALSE(chain.ok());
  EXPECT_EQ(lost, std::vector<std::string>{"the device is lost"});
  const Status heard = waits.Wait(Clock::Real().Now() + Seconds(60), "the end");
  ASSERT_FALSE(heard);
  EXPECT_EQ(heard.error().message, "rank 1 is gone: the device is lost");
  EXPECT_TRUE(rank.Wait(Clock::Real().Now() + Seconds(60), "a job"));
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
