#include "bench/rank_trial.h"

#include <algorithm>
#include <span>

#include "base/peak_rss.h"

namespace kvcake::bench {
namespace {

constexpr int kSliceTokens = 512;  // of one process

std::vector<PageId> Ids(const PageTable& table) {
  std::vector<PageId> ids;
  for (const PageHandle& page : table) ids.push_back(page.id());
  return ids;
}

int32_t Best(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

Result<PageTable> RankTrial::Pages(size_t tokens) {
  runtime_.pool().DropCached();
  PageTable table;
  const size_t chunk = runtime_.pool().layout().chunk_tokens;
  while (table.size() * chunk < tokens) {
    auto page = runtime_.pool().Draw();
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
  const std::vector<PageId> ids = Ids(table);
  RankRun run;
  const int tokens = static_cast<int>(prompt.size());
  const TimePoint began = Clock::Real().Now();
  for (int start = 0; start < tokens; start += kSliceTokens) {
    const int count = std::min(kSliceTokens, tokens - start);
    const Slice slice{
        .tokens = std::span(prompt).subspan(start, count),
        .start = start,
        .pages = ids,
        .logits = start + count == tokens ? Slice::Logits::kLast : Slice::Logits::kNone};
    const TimePoint at = Clock::Real().Now();
    ASSIGN_OR_RETURN(const auto logits, runtime_.model().Forward(std::span(&slice, 1)));
    runtime_.compute_cost().Add(start, count, Clock::Real().Now() - at);
    if (!logits.empty()) run.token = Best(logits);
  }
  run.ttft_s = (Clock::Real().Now() - began).count();
  run.peak_rss_bytes = PeakRssBytes();
  return run;
}

Result<RankRun> RankTrial::Several(const std::vector<int32_t>& prompt, RankMethod method,
                                   const Partition& partition, bool exchange) {
  ASSIGN_OR_RETURN(const PageTable table, Pages(prompt.size()));
  const std::vector<PageId> ids = Ids(table);
  RankJob job{.method = method, .tokens = prompt, .partition = partition};
  job.exchange = exchange;
  RankRun run;
  const TimePoint began = Clock::Real().Now();
  ASSIGN_OR_RETURN(const auto gate, chain_.Start(job, ids));
  std::vector<Slice> batch;
  for (const TokenRange& range : RangesOf(job, job.places() - 1)) {
    batch.push_back({.tokens = std::span(prompt).subspan(range.begin, range.size()),
                     .start = range.begin,
                     .pages = ids,
                     .gate = gate.get()});
  }
  batch.back().logits = Slice::Logits::kLast;
  const TimePoint at = Clock::Real().Now();
  const auto forward = runtime_.model().Forward(batch);
  const TimePoint done = Clock::Real().Now();
  run.ttft_s = (done - began).count();
  run.compute_most_s = (done - at - gate->waited()).count();
  if (forward) run.token = Best(*forward);
  ASSIGN_OR_RETURN(const auto ranks, chain_.End(*gate, forward.map([](auto) {})));
  run.sent_bytes = gate->sent_bytes();
  run.peak_rss_bytes = PeakRssBytes();
  for (const RankReport& rank : ranks) {
    run.compute_most_s = std::max(run.compute_most_s, rank.compute_s);
    run.sent_bytes += rank.sent_bytes;
    run.peak_rss_bytes = std::max(run.peak_rss_bytes, rank.peak_rss_bytes);
  }
  return run;
}

}  // namespace kvcake::bench
