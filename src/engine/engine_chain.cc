// Engine: prompts that several ranks prefill (runahead/chain.h).
#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/check.h"
#include "base/peak_rss.h"
#include "engine/engine.h"

namespace kvcake {

void Engine::SetChain(ChainLeader* chain, ChainPlanner* planner) {
  chain_ = chain;
  chain_planner_ = planner;
  for (auto& sequence : running_) sequence->chain.reset();
}

// Divides what is left of the prompt after the chunks at its beginning that are kept somewhere:
// those are restored first, by every rank for itself.
void Engine::PlanChain(Sequence& sequence) {
  const Request& request = sequence.request;
  const bool may = request.policy == Policy::kCake || request.policy == Policy::kCompute;
  if (!chain_->ok() || !may || sequence.scores_prompt() || request.forced_split) return;
  const int chunk = pool_.layout().chunk_tokens;
  const int tokens = sequence.prefill_tokens;
  const std::vector<bool> known =
      restorer_.Known(sequence.keys, /*stored=*/request.policy != Policy::kCompute);
  const auto end = std::find(known.begin(), known.end(), false);
  // What is kept behind a hole is loaded, if this process does it all.
  if (std::find(end, known.end(), true) != known.end()) return;
  const int origin = std::min(static_cast<int>(end - known.begin()), (tokens - 1) / chunk) * chunk;
  std::optional<Partition> partition =
      chain_planner_->Plan(origin, tokens - origin, chain_->ranks());
  if (!partition || partition->ranks() < 2) return;
  for (int i = 0; i < partition->ranks(); ++i) {
    if (partition->size(i) <= model_.max_batch_tokens()) continue;
    spdlog::warn(
        "a prompt of {} tokens is prefilled by this process alone: a rank would compute "
        "{}, more than --rank-tokens-max {}",
        tokens, partition->size(i), model_.max_batch_tokens());
    return;
  }
  sequence.keys.resize(origin / chunk);
  sequence.chain = RankJob{.salt = request.salt,
                           .tokens = sequence.tokens,
                           .origin = origin,
                           .partition = std::move(*partition)};
}

// A chain's slice is the only one of its step.
bool Engine::PlanChainStep(std::vector<Part>* parts) {
  for (auto& sequence : running_) {
    if (!sequence->chain) continue;
    if (sequence->state == Sequence::State::kRestoring && sequence->restoration->done()) {
      EndRestoration(*sequence);
    }
    const int tokens = sequence->prefill_tokens;
    if (sequence->state != Sequence::State::kPrefilling || !EnsurePages(*sequence, tokens)) {
      continue;
    }
    const RankJob& job = *sequence->chain;
    const int start = job.origin + job.partition.begin(job.partition.ranks() - 1);
    parts->push_back({.sequence = sequence.get(),
                      .start = start,
                      .count = tokens - start,
                      .claim = {},
                      .samples = true,
                      .chained = true,
                      .pages = IdsOf(sequence->table)});
    return true;
  }
  return false;
}

void Engine::RunChainStep(const StepPlan& plan) {
  const Part& part = plan.parts[0];
  Sequence& sequence = *part.sequence;
  const RankJob& job = *sequence.chain;
  CHECK(sequence.kv_tokens == job.origin);  // what follows is nobody's yet
  const TimePoint began = clock_.Now();
  const auto gate = chain_->Start(job, part.pages);
  if (!gate) return DropChain(gate.error());
  const Slice slice{.tokens = std::span(sequence.tokens).subspan(part.start, part.count),
                    .start = part.start,
                    .pages = part.pages,
                    .logits = Slice::Logits::kLast,
                    .gate = gate->get()};
  const auto forward = model_.Forward(std::span(&slice, 1));
  const Seconds took = clock_.Now() - began, waited = (*gate)->waited();
  auto reports = chain_->End(**gate, forward.map([](auto) {}));
  if (!reports) return DropChain(reports.error());
  reports->push_back({.compute_s = (took - waited).count(),
                      .wait_s = waited.count(),
                      .sent_bytes = (*gate)->sent_bytes(),
                      .peak_rss_bytes = PeakRssBytes()});
  for (const RankReport& rank : *reports) {
    if (rank.mixed_path == 0) continue;
    sequence.request.store = false;  // right to rounding only, as EndRestoration says
    sequence.numeric_path = NumericPath::kUnknown;
  }
  chain_planner_->Learn(job, *reports);
  ChainReport& report = sequence.completion.chain.emplace();
  report.job.origin = job.origin;
  report.job.partition = job.partition;
  report.ranks = std::move(*reports);
  if (observer_) Observe(plan, began, took);
  sequence.chain.reset();
  CommitStep(plan, began, took, *forward);
}

// Nothing of the prompt is lost but time: this process computes it.
void Engine::DropChain(const Error& error) {
  spdlog::error("the chain of ranks is lost, prompts are prefilled by this process alone: {}",
                error.message);
  for (auto& sequence : running_) sequence->chain.reset();
}

}  // namespace kvcake
