#include "bench/emulated_ranks.h"

#include <fmt/core.h>

#include "base/check.h"
#include "comm/memory_comm.h"
#include "comm/shaped_comm.h"

namespace kvcake::bench {
namespace {

constexpr double kFreeBytesPerS = 1e15;

LinkNoise Slowed(LinkNoise noise, double times) {
  noise.burst_mean *= times;
  noise.gap_mean *= times;
  return noise;
}

EmulatedProfile At(EmulatedProfile profile, double speed) {
  for (double* coefficient : {&profile.c0, &profile.g, &profile.b, &profile.a, &profile.floor}) {
    *coefficient /= speed;
  }
  return profile;
}

}  // namespace

EmulatedRanks::EmulatedRanks(EmulatedRanksOptions options)
    : options_(std::move(options)), cost_(ChainCostOf(options_.profile, options_.ranks)) {
  const EmulatedProfile& profile = options_.profile;
  const KvLayout layout = EmulatedModel::LayoutFor(profile, kChunkTokens);
  cost_.link = options_.link;
  cost_.qkv_share = 0;  // EmulatedModel's KV cache is there before it waits
  const double rate = options_.link.free() ? kFreeBytesPerS : options_.link.bytes_per_s;
  const double slow = options_.slow_motion;
  const LinkShape shape{.rate_bytes_per_s = EmulatedModel::ScaleRate(profile, layout, rate) / slow,
                        .latency = Seconds(options_.link.alpha_s * slow)};
  const TimePoint epoch = Clock::Real().Now();
  const uint64_t pages = options_.tokens_max / kChunkTokens + 1;
  for (std::unique_ptr<Comm>& comm : NewMemoryComms(options_.ranks)) {
    Rank& rank = ranks_.emplace_back();
    const size_t i = ranks_.size() - 1;
    const double speed = options_.speeds.empty() ? 1 : options_.speeds.at(i);
    cost_.ranks[i].speed = speed;
    rank.pool = PagePool::Create(layout, pages * layout.page_bytes()).value();
    rank.model =
        std::make_unique<EmulatedModel>(At(profile, speed / slow), *rank.pool, options_.tokens_max);
    rank.comm = NewShapedComm(
        std::move(comm), {.link = shape, .noise = Slowed(options_.noise, slow), .epoch = epoch});
  }
  const auto done_of = [this](int rank) {
    return [this, rank](const RankJob& job, const KvGate& gate) {
      if (options_.on_done) options_.on_done(rank, job, gate);
    };
  };
  for (int i = 0; i + 1 < options_.ranks; ++i) {
    workers_.emplace_back([this, i, done = done_of(i)] {
      Rank& rank = ranks_[i];
      const Status status = WorkForChain(
          *rank.comm, {.model = *rank.model,
                       .pool = *rank.pool,
                       .restore_prefix = [](const RankJob&) -> Status {
                         return Fail(ErrorCode::kInvalidArgument, "emulated ranks keep nothing");
                       },
                       .on_done = done});
      if (!status) fmt::print(stderr, "rank {}: {}\n", i, status.error().message);
    });
  }
  Rank& leader = ranks_.back();
  trial_ = std::make_unique<RankTrial>(
      *leader.model, *leader.pool, *leader.comm,
      RankTrialOptions{.dense = profile.attention == EmulatedProfile::Attention::kDense,
                       .slow_motion = slow,
                       .on_done = done_of(options_.ranks - 1)});
}

EmulatedRanks::~EmulatedRanks() {
  trial_.reset();
  for (std::thread& worker : workers_) worker.join();
}

}  // namespace kvcake::bench
