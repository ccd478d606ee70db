#include "engine/chain_prefill.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/check.h"
#include "base/peak_rss.h"

namespace kvcake {

void ChainPrefill::Divide(Sequence& sequence) {
  const Request& request = sequence.request;
  const bool may = request.policy == Policy::kCake || request.policy == Policy::kCompute;
  if (!leader_.ok() || !may || sequence.scores_prompt() || request.forced_split) return;
  const int chunk = model_.layout().chunk_tokens;
  const int tokens = sequence.prefill_tokens;
  const std::vector<bool> known =
      restorer_.Known(sequence.keys, /*stored=*/request.policy != Policy::kCompute);
  const auto end = std::find(known.begin(), known.end(), false);
  // What is kept behind a hole is loaded, if this process does it all.
  if (std::find(end, known.end(), true) != known.end()) return;
  const int origin = std::min(static_cast<int>(end - known.begin()), (tokens - 1) / chunk) * chunk;
  std::optional<Partition> partition = planner_.Plan(origin, tokens - origin, leader_.ranks());
  if (!partition || partition->ranks() < 2) return;
  const int most = std::min(model_.max_batch_tokens(), leader_.tokens_max());
  for (int i = 0; i < partition->ranks(); ++i) {
    if (partition->size(i) <= most) continue;
    spdlog::warn(
        "a prompt of {} tokens is prefilled by this process alone: a rank would compute "
        "{}, more than --rank-tokens-max {}",
        tokens, partition->size(i), most);
    return;
  }
  sequence.keys.resize(origin / chunk);
  sequence.chain = RankJob{.salt = request.salt,
                           .tokens = sequence.tokens,
                           .origin = origin,
                           .partition = std::move(*partition)};
}

Result<StepRun> ChainPrefill::Run(const StepPart& part) {
  Sequence& sequence = *part.sequence;
  const RankJob& job = *sequence.chain;
  CHECK(sequence.kv_tokens == job.origin);  // what follows is nobody's yet
  StepRun run{.began = clock_.Now()};
  ASSIGN_OR_RETURN(const auto gate, leader_.Start(job, part.pages));  // when all have restored
  const TimePoint started = clock_.Now();
  const Slice slice{.tokens = std::span(sequence.tokens).subspan(part.start, part.count),
                    .start = part.start,
                    .pages = part.pages,
                    .logits = Slice::Logits::kLast,
                    .gate = gate.get()};
  const auto forward = model_.Forward(std::span(&slice, 1));
  const TimePoint ended = clock_.Now();
  run.took = ended - run.began;
  const Seconds waited = gate->waited();
  ASSIGN_OR_RETURN(auto reports, leader_.End(*gate, forward.map([](auto) {})));
  reports.push_back({.compute_s = (ended - started - waited).count(),
                     .wait_s = waited.count(),
                     .sent_bytes = gate->sent_bytes(),
                     .peak_rss_bytes = PeakRssBytes()});
  for (const RankReport& rank : reports) {
    if (rank.mixed_path > 0) sequence.MixPaths();
  }
  if (!leader_.authenticated()) sequence.unproven = true;
  planner_.Learn(job, reports);
  ChainReport& report = sequence.completion.chain.emplace();
  report.job.origin = job.origin;
  report.job.partition = job.partition;
  report.ranks = std::move(reports);
  sequence.chain.reset();
  run.logits = *forward;
  return run;
}

}  // namespace kvcake
