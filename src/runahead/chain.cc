#include "runahead/chain.h"

#include <algorithm>

#include "base/check.h"
#include "base/peak_rss.h"
#include "runahead/job_message.h"

namespace kvcake {
namespace {

// Tags of what is said about a prompt.
enum : int { kHeaderTag, kBodyTag, kAnswerTag, kReportTag, kKeptTag };

std::span<const std::byte> BytesOf(const auto& value) {
  return std::as_bytes(std::span(&value, 1));
}

// Sends bytes that it keeps until they are gone.
void SendKept(Comm& comm, int to, int tag, std::span<const std::byte> bytes, TransferWait& wait) {
  const auto kept = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  comm.Send(to, tag, *kept,
            [kept, done = wait.Add(to)](Status status) { done(std::move(status)); });
}

Status ReceiveNow(Comm& comm, int from, int tag, std::span<std::byte> into, TimePoint deadline,
                  const char* what) {
  TransferWait wait;
  comm.Receive(from, tag, into, wait.Add(from));
  Status status = wait.Wait(deadline, what);
  // The buffer is the caller's again only when nothing can come into it.
  if (!status && !wait.Done()) comm.Close(status.error());
  return status;
}

}  // namespace

ChainLeader::ChainLeader(Comm& comm, const PagePool& pool, const ChainOptions& options)
    : comm_(comm), pool_(pool), options_(options) {
  CHECK(comm.size() > 1 && comm.rank() + 1 == comm.size());
}

ChainLeader::~ChainLeader() {
  if (lost_) return;
  TransferWait wait;
  for (int rank = 0; rank + 1 < comm_.size(); ++rank) {
    SendKept(comm_, rank, kHeaderTag, BytesOf(JobHeader{}), wait);
  }
  (void)wait.Wait(Clock::Real().Now() + options_.timeout, "letting ranks go");
}

Status ChainLeader::Lose(Error error) {
  lost_ = true;
  if (options_.on_lost) options_.on_lost(error);
  comm_.Close(error);
  return tl::unexpected<Error>(std::move(error));
}

Result<Survey> ChainLeader::SurveyLinks() {
  CHECK(!lost_);
  TransferWait sent;
  for (int rank = 0; rank + 1 < comm_.size(); ++rank) {
    SendKept(comm_, rank, kHeaderTag, BytesOf(JobHeader{.parts = kAsksLinks}), sent);
  }
  Result<Survey> survey = SurveyRanks(comm_, /*machine=*/"", options_.timeout);
  if (!survey) RETURN_IF_ERROR(Lose(survey.error()));
  return survey;
}

Result<int> ChainLeader::KeptByLast(int ranks, std::span<const ChunkKey> keys) {
  CHECK(!lost_ && !keys.empty() && ranks > 1 && ranks <= comm_.size());
  const auto chunks = static_cast<int32_t>(keys.size());
  const JobHeader header{.tokens = chunks, .parts = kAsksKept};
  const TimePoint deadline = Clock::Real().Now() + options_.timeout;
  TransferWait wait;
  std::vector<int32_t> kept(ranks - 1);
  const int first_rank = comm_.size() - ranks;
  for (size_t i = 0; i < kept.size(); ++i) {
    const int rank = first_rank + static_cast<int>(i);
    SendKept(comm_, rank, kHeaderTag, BytesOf(header), wait);
    SendKept(comm_, rank, kBodyTag, std::as_bytes(keys), wait);
    comm_.Receive(rank, kKeptTag, std::as_writable_bytes(std::span(&kept[i], 1)), wait.Add(rank));
  }
  if (const Status all = wait.Wait(deadline, "what ranks have kept"); !all) {
    RETURN_IF_ERROR(Lose(all.error()));  // after which `kept` is not written to
  }
  const auto [least, most] = std::minmax_element(kept.begin(), kept.end());
  if (*least < 0 || *most > chunks) {
    RETURN_IF_ERROR(
        Lose({ErrorCode::kCorrupt, fmt::format("ranks say that they have {} to {} of {} chunks",
                                               *least, *most, chunks)}));
  }
  return *least;
}

Result<std::unique_ptr<KvGate>> ChainLeader::Start(const RankJob& job,
                                                   std::span<const PageId> pages) {
  CHECK(!lost_ && job.places() > 1 && job.places() <= comm_.size());
  CHECK(static_cast<int>(job.tokens.size()) == job.origin + job.partition.tokens());
  const int first_rank = comm_.size() - job.places();
  const JobHeader header = HeaderOf(job);
  const std::vector<std::byte> body = EncodeBody(job);
  TransferWait wait;
  for (int rank = first_rank; rank + 1 < comm_.size(); ++rank) {
    SendKept(comm_, rank, kHeaderTag, BytesOf(header), wait);
    SendKept(comm_, rank, kBodyTag, body, wait);
  }
  if (const Status sent = wait.Wait(Clock::Real().Now() + options_.timeout, "a job"); !sent) {
    RETURN_IF_ERROR(Lose(sent.error()));
  }
  // Its own prefix is there already: the others take as long as they need.
  std::vector<JobAnswer> answers(comm_.size() - 1 - first_rank);
  TransferWait restored;
  for (size_t i = 0; i < answers.size(); ++i) {
    const int rank = first_rank + static_cast<int>(i);
    comm_.Receive(rank, kAnswerTag, std::as_writable_bytes(std::span(&answers[i], 1)),
                  restored.Add(rank));
  }
  const Seconds patience = job.origin > 0 ? options_.restore_timeout : options_.timeout;
  if (const Status all = restored.Wait(Clock::Real().Now() + patience, "ranks to be ready"); !all) {
    RETURN_IF_ERROR(Lose(all.error()));  // after which `answers` are not written to
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].refused == 0) continue;
    RETURN_IF_ERROR(Lose({ErrorCode::kInvalidArgument,
                          fmt::format("rank {} refuses a job: {}", first_rank + static_cast<int>(i),
                                      answers[i].Why())}));
  }
  reports_.assign(comm_.size() - 1 - first_rank, {});
  for (size_t i = 0; i < reports_.size(); ++i) {
    const int rank = first_rank + static_cast<int>(i);
    comm_.Receive(rank, kReportTag, std::as_writable_bytes(std::span(&reports_[i], 1)),
                  reported_.Add(rank));
  }
  auto routes = RoutesOf(job, job.places() - 1, first_rank, pool_.layout().chunk_tokens);
  auto gate =
      KvGate::Create(comm_, pool_, pages, std::move(routes), options_.timeout, options_.staging);
  if (!gate) RETURN_IF_ERROR(Lose(gate.error()));
  return gate;
}

namespace {

// What a rank says is its own word.
bool IsPossible(const RankReport& report) {
  constexpr double kSecondsMax = 1e6;
  const auto possible = [](double s) { return s >= 0 && s <= kSecondsMax; };  // and is a number
  return possible(report.compute_s) && possible(report.wait_s);
}

}  // namespace

Result<std::vector<RankReport>> ChainLeader::End(KvGate& gate, const Status& forward) {
  if (!forward) RETURN_IF_ERROR(Lose(forward.error()));
  if (const Status status = gate.Finish(); !status) RETURN_IF_ERROR(Lose(status.error()));
  const Status status = reported_.Wait(Clock::Real().Now() + options_.timeout, "ranks' reports");
  if (!status) RETURN_IF_ERROR(Lose(status.error()));
  for (size_t rank = 0; rank < reports_.size(); ++rank) {
    if (IsPossible(reports_[rank])) continue;
    RETURN_IF_ERROR(Lose(Fail(ErrorCode::kCorrupt,
                              "rank {} of the prompt reports {} s of computing and {} s of waiting",
                              rank, reports_[rank].compute_s, reports_[rank].wait_s)
                             .value()));
  }
  return reports_;
}

namespace {

class Worker {
 public:
  Worker(Comm& comm, const ChainWorker& worker) : comm_(comm), worker_(worker) {}

  Status Run() {
    const int leader = comm_.size() - 1;
    while (true) {
      JobHeader header;
      RETURN_IF_ERROR(ReceiveNow(comm_, leader, kHeaderTag,
                                 std::as_writable_bytes(std::span(&header, 1)), TimePoint::max(),
                                 "a job"));
      if (header.parts == kLetsGo) return {};
      if (header.parts == kAsksLinks) {
        RETURN_IF_ERROR(
            SurveyRanks(comm_, /*machine=*/"", worker_.options.timeout).map([](auto) {}));
        continue;
      }
      if (header.parts == kAsksKept) {
        RETURN_IF_ERROR(SayKept(header.tokens));
        continue;
      }
      const Result<RankJob> job = Accept(header);
      if (!job) return Refuse(job.error());
      ASSIGN_OR_RETURN(const RankReport report, Prefill(*job));
      TransferWait wait;
      SendKept(comm_, leader, kReportTag, BytesOf(report), wait);
      RETURN_IF_ERROR(wait.Wait(Deadline(), "a report"));
    }
  }

 private:
  TimePoint Deadline() const { return Clock::Real().Now() + worker_.options.timeout; }

  // Without progress of the exchange: while others are restoring still, nothing comes from them, or
  // goes on to them.
  Seconds ExchangeTimeout(const RankJob& job) const {
    const ChainOptions& options = worker_.options;
    return job.origin > 0 ? options.restore_timeout + options.timeout : options.timeout;
  }

  WorkerLimits Limits() const {
    const int most = std::min(worker_.model.max_batch_tokens(), worker_.options.tokens_max);
    return {.ranks = comm_.size(),
            .rank = comm_.rank(),
            .chunk_tokens = worker_.pool.layout().chunk_tokens,
            .vocab_size = worker_.model.vocab_size(),
            .positions_max = worker_.model.max_positions(),
            .batch_tokens_max = most};
  }

  Status SayKept(int chunks) {
    const int leader = comm_.size() - 1;
    if (chunks < 1 || chunks > Limits().positions_max / Limits().chunk_tokens) {
      return Fail(ErrorCode::kInvalidArgument,
                  "the leader asks for {} chunks, and the model has positions for {} tokens",
                  chunks, Limits().positions_max);
    }
    std::vector<ChunkKey> keys(chunks);
    RETURN_IF_ERROR(ReceiveNow(comm_, leader, kBodyTag, std::as_writable_bytes(std::span(keys)),
                               Deadline(), "a question"));
    const int32_t kept = worker_.kept ? worker_.kept(keys) : chunks;
    TransferWait told;
    SendKept(comm_, leader, kKeptTag, BytesOf(kept), told);
    return told.Wait(Deadline(), "an answer");
  }

  // A job that it can do, of which the prefix is restored.
  Result<RankJob> Accept(const JobHeader& header) {
    RETURN_IF_ERROR(CheckHeader(header, Limits()));
    std::vector<std::byte> body(BodyBytes(header));
    RETURN_IF_ERROR(ReceiveNow(comm_, comm_.size() - 1, kBodyTag, body, Deadline(), "a job"));
    ASSIGN_OR_RETURN(RankJob job, DecodeJob(header, body, Limits()));
    if (job.origin > 0) RETURN_IF_ERROR(worker_.restore_prefix(job));
    return job;
  }

  // Tells the leader why, and lets it hang up: what is left unread when this rank does may cost the
  // leader the answer.
  Status Refuse(const Error& why) {
    TransferWait told;
    SendKept(comm_, comm_.size() - 1, kAnswerTag, BytesOf(JobAnswer::Refusal(why.message)), told);
    std::byte none;
    if (told.Wait(Deadline(), "a refusal")) {
      (void)ReceiveNow(comm_, comm_.size() - 1, kHeaderTag, std::span(&none, 1), Deadline(),
                       "a leader to hang up");
    }
    return tl::unexpected<Error>(why);
  }

  // Pages of [0, end): what is published already, then new ones.
  Result<PageTable> Pages(const RankJob& job, const std::vector<ChunkKey>& keys, int end) {
    const int chunk = worker_.pool.layout().chunk_tokens;
    PageTable table;
    for (int i = 0; i * chunk < end; ++i) {
      const bool restored = (i + 1) * chunk <= job.origin;
      auto page = restored ? worker_.pool.Lookup(keys[i]) : worker_.pool.Draw();
      if (!page && restored) {
        return Fail(ErrorCode::kResourceExhausted,
                    "rank {}: what it had restored of a prompt is out of memory again: raise "
                    "--ram-capacity",
                    comm_.rank());
      }
      if (!page) {
        return Fail(ErrorCode::kResourceExhausted,
                    "rank {}: {} tokens need more pages than --ram-capacity has: raise it",
                    comm_.rank(), end);
      }
      table.push_back(std::move(*page));
    }
    return table;
  }

  Result<RankReport> Prefill(const RankJob& job) {
    const int chunk = worker_.pool.layout().chunk_tokens;
    const int first_rank = comm_.size() - job.places(), place = comm_.rank() - first_rank;
    TransferWait told;
    SendKept(comm_, comm_.size() - 1, kAnswerTag, BytesOf(JobAnswer{}), told);
    const std::vector<ChunkKey> keys =
        ChunkKeys(SaltedRoot(worker_.model.identity(), job.salt), job.tokens, chunk);
    const int paged = PagedTokens(job, place);
    ASSIGN_OR_RETURN(PageTable table, Pages(job, keys, paged));
    const std::vector<PageId> ids = IdsOf(table);
    ASSIGN_OR_RETURN(
        const auto gate,
        KvGate::Create(comm_, worker_.pool, ids, RoutesOf(job, place, first_rank, chunk),
                       ExchangeTimeout(job), worker_.options.staging));
    const std::vector<Slice> batch = SlicesOf(job, place, ids, gate.get());
    const TimePoint began = Clock::Real().Now();
    const auto forward = worker_.model.Forward(batch);
    if (!forward) {  // told as it is, before the gate goes
      comm_.Close(forward.error());
      return tl::unexpected<Error>(forward.error());
    }
    const Seconds waited = gate->waited(), took = Clock::Real().Now() - began;
    RETURN_IF_ERROR(gate->Finish());
    if (worker_.on_done) worker_.on_done(job, *gate);
    uint64_t mixed = 0;
    for (int i = 0; (i + 1) * chunk <= job.origin; ++i) {
      if (worker_.pool.path(ids[i]) != worker_.model.numeric_path()) mixed = 1;
    }
    const NumericPath path = mixed != 0 ? NumericPath::kUnknown : worker_.model.numeric_path();
    const bool keep = job.exchange && worker_.options.authenticated;
    for (int i = job.origin / chunk; keep && (i + 1) * chunk <= paged; ++i) {
      table[i] = worker_.pool.Publish(std::move(table[i]), keys[i], path);
    }
    return RankReport{.compute_s = (took - waited).count(),
                      .wait_s = waited.count(),
                      .sent_bytes = gate->sent_bytes(),
                      .peak_rss_bytes = PeakRssBytes(),
                      .mixed_path = mixed};
  }

  Comm& comm_;
  const ChainWorker& worker_;
};

}  // namespace

Status WorkForChain(Comm& comm, const ChainWorker& worker) {
  Status status = Worker(comm, worker).Run();
  if (!status) comm.Close(status.error());
  return status;
}

}  // namespace kvcake
