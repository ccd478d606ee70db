#include "bench/rank_trial.h"

#include <algorithm>
#include <span>

#include "bench/harness.h"

namespace kvcake::bench {
namespace {

constexpr int kSliceTokens = 512;  // of one process

int32_t Best(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

Result<PageTable> RankTrial::Pages(size_t tokens) {
  pool_.DropCached();
  PageTable table;
  const size_t chunk = layout().chunk_tokens;
  while (table.size() * chunk < tokens) {
    auto page = pool_.Draw();
    if (!page) {
      return Fail(ErrorCode::kResourceExhausted,
                  "a prompt of {} tokens does not fit into --ram-capacity", tokens);
    }
    table.push_back(std::move(*page));
  }
  return table;
}

Result<RankRun> RankTrial::Single(const std::vector<int32_t>& prompt) {
  ASSIGN_OR_RETURN(const PageTable table, Pages(prompt.size()));
  const std::vector<PageId> ids = IdsOf(table);
  RankRun run;
  const int tokens = static_cast<int>(prompt.size());
  const int step = options_.dense ? model_.max_batch_tokens() : kSliceTokens;
  const TimePoint began = Clock::Real().Now();
  for (int start = 0; start < tokens; start += step) {
    const int count = std::min(step, tokens - start);
    const Slice slice{
        .tokens = std::span(prompt).subspan(start, count),
        .start = start,
        .pages = ids,
        .logits = start + count == tokens ? Slice::Logits::kLast : Slice::Logits::kNone,
        .dense_keys = options_.dense ? tokens : 0};
    const TimePoint at = Clock::Real().Now();
    ASSIGN_OR_RETURN(const auto logits, model_.Forward(std::span(&slice, 1)));
    if (options_.on_slice) options_.on_slice(start, count, Clock::Real().Now() - at);
    if (!logits.empty()) run.token = Best(logits);
  }
  run.ttft_s = run.compute_most_s = Reported(Clock::Real().Now() - began);
  return run;
}

Result<RankRun> RankTrial::Several(const std::vector<int32_t>& prompt, RankMethod method,
                                   const Partition& partition, bool exchange) {
  ASSIGN_OR_RETURN(const PageTable table, Pages(prompt.size()));
  const std::vector<PageId> ids = IdsOf(table);
  const RankJob job{.method = method,
                    .tokens = prompt,
                    .partition = partition,
                    .exchange = exchange,
                    .dense = options_.dense};
  RankRun run;
  const TimePoint began = Clock::Real().Now();
  ASSIGN_OR_RETURN(const auto gate, chain_.Start(job, ids));
  const auto batch = SlicesOf(job, job.places() - 1, ids, gate.get());
  const TimePoint at = Clock::Real().Now();
  const auto forward = model_.Forward(batch);
  const TimePoint done = Clock::Real().Now();
  run.ttft_s = Reported(done - began);
  const Seconds waited = gate->waited();
  if (forward) run.token = Best(*forward);
  ASSIGN_OR_RETURN(run.ranks, chain_.End(*gate, forward.map([](auto) {})));
  if (options_.on_done) options_.on_done(job, *gate);
  for (RankReport& rank : run.ranks) {
    rank.compute_s = Reported(Seconds(rank.compute_s));
    rank.wait_s = Reported(Seconds(rank.wait_s));
  }
  run.ranks.push_back({.compute_s = Reported(done - at - waited),
                       .wait_s = Reported(waited),
                       .sent_bytes = gate->sent_bytes()});
  for (const RankReport& rank : run.ranks) {
    run.compute_most_s = std::max(run.compute_most_s, rank.compute_s);
    run.sent_bytes += rank.sent_bytes;
  }
  return run;
}

Result<double> RankTrial::ChainSeconds(const std::vector<int32_t>& prompt,
                                       const Partition& partition, int repeats) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    ASSIGN_OR_RETURN(const RankRun run, Several(prompt, RankMethod::kChain, partition));
    seconds.push_back(run.ttft_s);
  }
  return Median(std::move(seconds));
}

}  // namespace kvcake::bench
