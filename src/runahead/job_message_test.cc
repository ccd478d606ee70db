#include "runahead/job_message.h"

#include <gmock/gmock.h>

#include <functional>
#include <thread>

#include "comm/local_comms_testing.h"
#include "comm/memory_comm.h"
#include "model/transformer_testing.h"
#include "runahead/chain.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

constexpr int kJobChunk = 32;

RankJob SoundJob() {
  return {.salt = "a tenant's",
          .tokens = Prompt(1, 200, TinyConfig().vocab_size),
          .origin = kJobChunk,
          .partition = {.bounds = {0, 100, 168}}};
}

WorkerLimits LimitsOf(const ModelConfig& config) {
  return {.ranks = 2,
          .rank = 0,
          .chunk_tokens = kJobChunk,
          .vocab_size = config.vocab_size,
          .positions_max = 1000,
          .batch_tokens_max = 512};
}

struct BadJob {
  const char* why;
  std::function<void(JobHeader&, RankJob&)> spoil;
};

// Each as somebody with the cluster's key may send it.
const std::vector<BadJob>& BadJobs() {
  static const std::vector<BadJob> jobs = {
      {"vocabulary", [](JobHeader&, RankJob& job) { job.tokens[7] = 1 << 30; }},
      {"token 7 of the job is -1", [](JobHeader&, RankJob& job) { job.tokens[7] = -1; }},
      {"vocabulary", [](JobHeader&, RankJob& job) { job.tokens.back() = TinyConfig().vocab_size; }},
      {"no number of whole chunks", [](JobHeader& header, RankJob&) { header.origin = 31; }},
      {"before the last token", [](JobHeader& header, RankJob&) { header.origin = 224; }},
      {"the job's first -32", [](JobHeader& header, RankJob&) { header.origin = -kJobChunk; }},
      {"has -1 tokens", [](JobHeader& header, RankJob&) { header.tokens = -1; }},
      {"has 2147483647 tokens", [](JobHeader& header, RankJob&) { header.tokens = INT32_MAX; }},
      {"has 1 parts", [](JobHeader& header, RankJob&) { header.parts = 1; }},
      {"has 3 parts", [](JobHeader& header, RankJob&) { header.parts = 3; }},
      {"has 3 parts",
       [](JobHeader& header, RankJob&) {
         header.parts = 3;
         header.method = static_cast<int32_t>(RankMethod::kZigzag);
       }},
      {"method is 9", [](JobHeader& header, RankJob&) { header.method = 9; }},
      {"salt has -1 bytes", [](JobHeader& header, RankJob&) { header.salt_bytes = -1; }},
      {"salt has 1073741824 bytes",
       [](JobHeader& header, RankJob&) { header.salt_bytes = 1 << 30; }},
      {"rank 1 gets no tokens", [](JobHeader&, RankJob& job) { job.partition.bounds[1] = 168; }},
      {"goes from 0 to 168", [](JobHeader&, RankJob& job) { job.partition.bounds[0] = -100000; }},
      {"goes from 0 to 168", [](JobHeader&, RankJob& job) { job.partition.bounds[2] = 1 << 30; }},
  };
  return jobs;
}

TEST(JobMessageTest, ASoundJobComesAsItWent) {
  const RankJob job = SoundJob();
  const WorkerLimits limits = LimitsOf(TinyConfig());
  const JobHeader header = HeaderOf(job);
  ASSERT_TRUE(CheckHeader(header, limits));
  const auto decoded = DecodeJob(header, EncodeBody(job), limits);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->salt, job.salt);
  EXPECT_EQ(decoded->tokens, job.tokens);
  EXPECT_EQ(decoded->origin, job.origin);
  EXPECT_EQ(decoded->partition, job.partition);
}

TEST(JobMessageTest, HowAJobIsDoneComesAsItWent) {
  WorkerLimits limits = LimitsOf(TinyConfig());
  limits.rank = 1;  // which has a part of every method
  for (const RankMethod method : {RankMethod::kChain, RankMethod::kTsp, RankMethod::kZigzag}) {
    for (const auto& [exchange, dense] : {std::pair(true, false), std::pair(false, true)}) {
      RankJob job = SoundJob();
      job.method = method;
      job.exchange = exchange;
      job.dense = dense;
      job.partition = EvenPartition(job.partition.tokens(), method == RankMethod::kZigzag ? 4 : 2);
      const JobHeader header = HeaderOf(job);
      ASSERT_TRUE(CheckHeader(header, limits));
      const auto decoded = DecodeJob(header, EncodeBody(job), limits);
      ASSERT_TRUE(decoded) << decoded.error().message;
      EXPECT_EQ(decoded->method, method);
      EXPECT_EQ(decoded->exchange, exchange);
      EXPECT_EQ(decoded->dense, dense);
    }
  }
}

TEST(JobMessageTest, APartThatDoesNotFitOrIsNobodysIsRefused) {
  WorkerLimits limits = LimitsOf(TinyConfig());
  const RankJob job = SoundJob();
  limits.batch_tokens_max = 99;
  auto decoded = DecodeJob(HeaderOf(job), EncodeBody(job), limits);
  ASSERT_FALSE(decoded);
  EXPECT_THAT(decoded.error().message, HasSubstr("part of rank 0 has 100 tokens, and at most 99"));
  limits.ranks = 3;
  decoded = DecodeJob(HeaderOf(job), EncodeBody(job), limits);
  ASSERT_FALSE(decoded);
  EXPECT_THAT(decoded.error().message, HasSubstr("rank 0 has no part"));
}

TEST(JobMessageTest, WhatJustFitsIsTakenAndNoMore) {
  const auto sound = [](const std::function<void(JobHeader&)>& change) {
    JobHeader header = HeaderOf(SoundJob());
    change(header);
    return CheckHeader(header, LimitsOf(TinyConfig())).has_value();
  };
  EXPECT_TRUE(sound([](JobHeader& header) { header.tokens = 1000; }));
  EXPECT_FALSE(sound([](JobHeader& header) { header.tokens = 1001; }));
  const auto restored = [](int origin) {
    return [origin](JobHeader& header) { header.tokens = 6 * kJobChunk, header.origin = origin; };
  };
  EXPECT_TRUE(sound(restored(5 * kJobChunk)));
  EXPECT_FALSE(sound(restored(6 * kJobChunk)));
  EXPECT_TRUE(sound([](JobHeader& header) { header.salt_bytes = 1 << 20; }));
  EXPECT_FALSE(sound([](JobHeader& header) { header.salt_bytes = (1 << 20) + 1; }));
}

TEST(JobMessageTest, ARefusalIsOneLineOfText) {
  EXPECT_EQ(JobAnswer::Refusal("no").Why(), "no");
  EXPECT_EQ(JobAnswer::Refusal("a\n\x1b[31mb\x9b").Why(), "a??[31mb?");
  EXPECT_EQ(JobAnswer::Refusal(std::string(2000, 'x')).Why(), std::string(508, 'x'));
}

// What a worker makes of a job that is sent as any leader may; what it answers.
class Leader {
 public:
  explicit Leader(Rig& rig, const ChainOptions& options = {.timeout = Seconds(60),
                                                           .restore_timeout = Seconds(60)}) {
    comms_ = testing_util::NewLocalTcpComms(2);
    worker_ = std::thread([this, &rig, options] {
      const ChainWorker worker{.model = *rig.model,
                               .pool = *rig.pages,
                               .restore_prefix = [](const RankJob&) -> Status { return {}; },
                               .options = options};
      status_ = WorkForChain(*comms_[0], worker);
    });
  }
  ~Leader() { HangUp(); }

  JobAnswer Ask(const JobHeader& header, const RankJob& job) {
    const std::vector<std::byte> body = EncodeBody(job);
    JobAnswer answer;
    TransferWait sent, heard;
    comms_[1]->Receive(0, 2, std::as_writable_bytes(std::span(&answer, 1)), heard.Add(0));
    comms_[1]->Send(0, 0, std::as_bytes(std::span(&header, 1)), sent.Add(0));
    comms_[1]->Send(0, 1, body, sent.Add(0));
    EXPECT_TRUE(heard.Wait(Clock::Real().Now() + Seconds(120), "an answer"));
    EXPECT_TRUE(sent.Wait(Clock::Real().Now() + Seconds(120), "a job"));
    return answer;
  }
  // What the worker's work came to.
  Status HangUp() {
    comms_[1]->Close({ErrorCode::kCancelled, "hung up"});
    if (worker_.joinable()) worker_.join();
    return status_;
  }

 private:
  testing_util::Comms comms_;
  Status status_;
  std::thread worker_;
};

TEST(JobMessageTest, AWorkerRefusesABadJobSaysWhyAndLives) {
  Rig rig(TinyConfig(), NumericPath::kF32, 1, kJobChunk);
  for (const BadJob& bad : BadJobs()) {
    SCOPED_TRACE(bad.why);
    RankJob job = SoundJob();
    JobHeader header = HeaderOf(job);
    bad.spoil(header, job);
    Leader leader(rig);
    const JobAnswer answer = leader.Ask(header, job);
    EXPECT_EQ(answer.refused, 1);
    EXPECT_THAT(answer.Why(), HasSubstr(bad.why));
    const Status status = leader.HangUp();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(status.error().message, answer.Why());
  }
  // It does the next one's.
  Leader leader(rig);
  RankJob job = SoundJob();
  job.origin = 0;
  job.partition = EvenPartition(200, 2);
  EXPECT_EQ(leader.Ask(HeaderOf(job), job).refused, 0);
}

// The last of two ranks' part in a job of 200 tokens, after which it lets the other go.
Result<std::vector<RankReport>> LeadOf(Comm& comm, Rig& rig, const RankJob& job,
                                       const ChainOptions& options) {
  ChainLeader chain(comm, *rig.pages, options);
  const PageTable pages = rig.Draw(200);
  const std::vector<PageId> ids = IdsOf(pages);
  ASSIGN_OR_RETURN(const auto gate, chain.Start(job, ids));
  const auto forward = rig.model->Forward(SlicesOf(job, 1, ids, gate.get()));
  return chain.End(*gate, forward.map([](auto) {}));
}

// Keys that it would find again, and with them what the rank before it has sent.
TEST(JobMessageTest, AWorkerPublishesWhatProvenRanksHaveSentAndNothingElse) {
  RankJob job{.salt = "",
              .tokens = Prompt(1, 200, TinyConfig().vocab_size),
              .partition = EvenPartition(200, 2)};
  for (const auto& [authenticated, exchange] :
       {std::pair(false, true), std::pair(true, true), std::pair(true, false)}) {
    SCOPED_TRACE(fmt::format("{} {}", authenticated, exchange));
    job.exchange = exchange;
    const auto comms = NewMemoryComms(2);
    Rig worker_rig(TinyConfig(), NumericPath::kF32, 1, kJobChunk);
    Rig rig(TinyConfig(), NumericPath::kF32, 1, kJobChunk);
    Status worked;
    const ChainOptions options{.authenticated = authenticated};
    std::thread worker([&] {
      worked = WorkForChain(*comms[0], {.model = *worker_rig.model,
                                        .pool = *worker_rig.pages,
                                        .restore_prefix = {},
                                        .options = options});
    });
    const auto reports = LeadOf(*comms[1], rig, job, options);
    EXPECT_TRUE(reports) << reports.error().message;
    worker.join();
    EXPECT_TRUE(worked);
    const auto keys = ChunkKeys(worker_rig.model->identity().Root(), job.tokens, kJobChunk);
    for (int i = 0; i < 100 / kJobChunk; ++i) {
      EXPECT_EQ(worker_rig.pages->Lookup(keys[i]).has_value(), authenticated && exchange) << i;
    }
  }
}

// One tenant's are found by no other one's prompts.
TEST(JobMessageTest, AWorkerPublishesUnderTheKeysOfThePromptsSalt) {
  const RankJob job{.salt = "a tenant's",
                    .tokens = Prompt(1, 200, TinyConfig().vocab_size),
                    .partition = EvenPartition(200, 2)};
  const auto comms = NewMemoryComms(2);
  Rig worker_rig(TinyConfig(), NumericPath::kF32, 1, kJobChunk);
  Rig rig(TinyConfig(), NumericPath::kF32, 1, kJobChunk);
  std::thread worker([&] {
    (void)WorkForChain(*comms[0], {.model = *worker_rig.model,
                                   .pool = *worker_rig.pages,
                                   .restore_prefix = {},
                                   .options = {.authenticated = true}});
  });
  const auto reports = LeadOf(*comms[1], rig, job, {.authenticated = true});
  EXPECT_TRUE(reports) << reports.error().message;
  worker.join();
  const KvIdentity& identity = worker_rig.model->identity();
  for (const std::string salt : {"a tenant's", "", "another's"}) {
    const auto keys = ChunkKeys(SaltedRoot(identity, salt), job.tokens, kJobChunk);
    EXPECT_EQ(worker_rig.pages->Lookup(keys[0]).has_value(), salt == job.salt) << salt;
  }
}

// What it computes after them is right to rounding only.
TEST(JobMessageTest, AWorkerTellsOfAnotherPathsChunksAndPublishesNoneAfterThemAsItsOwn) {
  constexpr int kRestored = 2;
  const RankJob job{.salt = "",
                    .tokens = Prompt(1, 200, TinyConfig().vocab_size),
                    .origin = kRestored * kJobChunk,
                    .partition = EvenPartition(200 - kRestored * kJobChunk, 2)};
  for (const NumericPath path : {NumericPath::kF32, NumericPath::kF32Fma}) {
    const bool mixed = path != NumericPath::kF32;
    SCOPED_TRACE(mixed);
    const auto comms = NewMemoryComms(2);
    Rig worker_rig(TinyConfig(), NumericPath::kF32, 1, kJobChunk);
    Rig rig(TinyConfig(), NumericPath::kF32, 1, kJobChunk);
    PagePool& pool = *worker_rig.pages;
    const auto keys = ChunkKeys(worker_rig.model->identity().Root(), job.tokens, kJobChunk);
    const auto restore = [&](const RankJob&) -> Status {
      for (int i = 0; i < kRestored; ++i) pool.Publish(*pool.Draw(), keys[i], path);
      return {};
    };
    std::thread worker([&] {
      (void)WorkForChain(*comms[0], {.model = *worker_rig.model,
                                     .pool = pool,
                                     .restore_prefix = restore,
                                     .options = {.authenticated = true}});
    });
    const auto reports = LeadOf(*comms[1], rig, job, {.authenticated = true});
    worker.join();
    ASSERT_TRUE(reports) << reports.error().message;
    EXPECT_EQ(reports->at(0).mixed_path, mixed ? 1u : 0u);
    const auto computed = pool.Lookup(keys[kRestored]);
    ASSERT_TRUE(computed);
    EXPECT_EQ(pool.path(computed->id()), mixed ? NumericPath::kUnknown : NumericPath::kF32);
  }
}

// Whatever its model may take at once.
TEST(JobMessageTest, AWorkerComputesNoMoreThanItIsAllowed) {
  Rig rig(TinyConfig(), NumericPath::kF32, 1, kJobChunk);
  RankJob job = SoundJob();
  job.origin = 0;
  job.partition = EvenPartition(200, 2);
  for (const int allowed : {100, 99}) {
    Leader leader(rig, {.timeout = Seconds(60), .tokens_max = allowed});
    const JobAnswer answer = leader.Ask(HeaderOf(job), job);
    EXPECT_EQ(answer.refused, allowed < 100 ? 1 : 0);
    if (allowed < 100) {
      EXPECT_THAT(answer.Why(), HasSubstr("at most 99 fit (--rank-tokens-max)"));
    }
  }
}

TEST(JobMessageTest, AWorkerIsAskedForChunksThatAPromptCanHaveAndNoOthers) {
  Rig rig(TinyConfig(), NumericPath::kF32, 1, kJobChunk);
  for (const int32_t chunks : {0, -1, INT32_MAX, rig.model->max_positions() / kJobChunk + 1}) {
    const auto comms = NewMemoryComms(2);
    TransferWait sent;
    const JobHeader header{.tokens = chunks, .parts = kAsksKept};
    comms[1]->Send(0, 0, std::as_bytes(std::span(&header, 1)), sent.Add(0));
    const Status worked =
        WorkForChain(*comms[0], {.model = *rig.model, .pool = *rig.pages, .restore_prefix = {}});
    ASSERT_FALSE(worked);
    EXPECT_EQ(worked.error().code, ErrorCode::kInvalidArgument) << chunks;
    (void)sent.Wait(Clock::Real().Now() + Seconds(120), "a question");
  }
}

TEST(JobMessageTest, TheLeaderSaysWhatAWorkerHasRefused) {
  const auto comms = testing_util::NewLocalComms(/*tcp=*/true, 2);
  Rig worker_rig(TinyConfig(), NumericPath::kF32, 1, kJobChunk);
  Rig rig(TinyConfig(), NumericPath::kF32, 1, kJobChunk);
  Status worked;
  std::thread worker([&] {
    worked = WorkForChain(*comms[0], {.model = *worker_rig.model,
                                      .pool = *worker_rig.pages,
                                      .restore_prefix = [](const RankJob&) -> Status {
                                        return Fail(ErrorCode::kIo, "the store's disk is gone");
                                      }});
  });
  {
    ChainLeader chain(*comms[1], *rig.pages, {.timeout = Seconds(60)});
    const PageTable pages = rig.Draw(200);
    const auto gate = chain.Start(SoundJob(), IdsOf(pages));
    ASSERT_FALSE(gate);
    EXPECT_EQ(gate.error().message, "rank 0 refuses a job: the store's disk is gone");
    EXPECT_FALSE(chain.ok());
  }
  worker.join();
  EXPECT_FALSE(worked);
}

TEST(JobMessageTest, TheLeaderNamesTheRankThatRefuses) {
  Rig rig(TinyConfig(), NumericPath::kF32, 1, kJobChunk);
  RankJob job = SoundJob();
  job.partition = EvenPartition(job.partition.tokens(), 3);
  for (const int refusing : {0, 1}) {
    const auto comms = NewMemoryComms(3);
    JobHeader headers[2];
    std::vector<std::byte> bodies[2];
    const JobAnswer ready, refusal = JobAnswer::Refusal("no");
    TransferWait sent, heard;
    for (const int rank : {0, 1}) {
      const JobAnswer& answer = rank == refusing ? refusal : ready;
      bodies[rank].resize(EncodeBody(job).size());
      comms[rank]->Receive(2, 0, std::as_writable_bytes(std::span(&headers[rank], 1)),
                           heard.Add(2));
      comms[rank]->Receive(2, 1, bodies[rank], heard.Add(2));
      comms[rank]->Send(2, 2, std::as_bytes(std::span(&answer, 1)), sent.Add(2));
    }
    ChainLeader chain(*comms[2], *rig.pages, {.timeout = Seconds(60)});
    const PageTable pages = rig.Draw(200);
    const auto gate = chain.Start(job, IdsOf(pages));
    ASSERT_FALSE(gate);
    EXPECT_EQ(gate.error().message, fmt::format("rank {} refuses a job: no", refusing));
    EXPECT_TRUE(heard.Wait(Clock::Real().Now() + Seconds(60), "a job"));
    EXPECT_TRUE(sent.Wait(Clock::Real().Now() + Seconds(60), "answers"));
  }
}

}  // namespace
}  // namespace kvcake
