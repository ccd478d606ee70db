// Engine: what a step does, and who gets pages for it.
#include <algorithm>
#include <utility>

#include "cake/prefill_order.h"
#include "engine/engine.h"
#include "engine/share_step.h"

namespace kvcake {

// A sequence is admitted when there are pages for its tokens and the next one, and one to spare for
// every sequence that may grow: nobody is preempted for the sake of a newcomer's first tokens.
void Engine::Admit() {
  const uint64_t available = PagesToPromise();
  uint64_t spare = 0;
  for (const auto& sequence : running_) spare += MayGrow(*sequence) ? 1 : 0;
  while (!waiting_.empty() && running_.size() < static_cast<size_t>(options_.max_sequences)) {
    Sequence& next = *waiting_.front();
    const uint64_t pages = PagesFor(static_cast<int>(next.tokens.size()) + 1);
    if (!running_.empty() && pages_promised_ + pages + spare > available) return;
    next.pages_promised = pages;
    pages_promised_ += pages;
    spare += MayGrow(next) ? 1 : 0;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    StartRestoration(next);
  }
}

bool Engine::MayGrow(const Sequence& sequence) const {
  return sequence.pages_promised < PagesFor(sequence.prompt_tokens() + sequence.request.max_tokens);
}

// Promises the pages that the next token needs, taking them from the youngest if there are no
// others. False when that was this one. The oldest is never preempted, and alone it always fits: so
// all come to their end.
bool Engine::Grow(Sequence& sequence) {
  const uint64_t needed = PagesFor(static_cast<int>(sequence.tokens.size()));
  while (sequence.pages_promised < needed) {
    if (pages_promised_ < PagesToPromise()) {
      ++sequence.pages_promised;
      ++pages_promised_;
      continue;
    }
    const bool itself = running_.back().get() == &sequence;
    PreemptYoungest();
    if (itself) return false;
  }
  return true;
}

// It is admitted again before all that wait, and restored from what the page cache and the store
// have kept.
void Engine::PreemptYoungest() {
  Sequence& sequence = *running_.back();
  if (sequence.state == Sequence::State::kPrefilling) StoreChunks(sequence);
  ReleasePages(sequence);
  sequence.restoration.reset();
  sequence.tail_slices.clear();
  sequence.tail.reset();
  sequence.chain.reset();
  sequence.keys.clear();
  sequence.kv_tokens = 0;
  if (sequence.generated() == 0) sequence.completion.prompt_scores.clear();
  sequence.state = Sequence::State::kWaiting;
  ++sequence.completion.preemptions;
  ++preemptions_;
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
}

void Engine::ReleasePages(Sequence& sequence) {
  if (sequence.state == Sequence::State::kRestoring) sequence.restoration->Abandon();
  sequence.table.clear();
  sequence.tail_page = {};
  pages_promised_ -= std::exchange(sequence.pages_promised, 0);
}

// No sequence can go on. If that is for want of pages, the ones that wait to be written are given
// up (the store is behind) and the others come back without an event: look again soon.
void Engine::AwaitPages(TimePoint* wake_at) {
  const PagePoolStats stats = pool_.Stats();
  const bool full = stats.referenced == stats.pages;
  if (!full && *wake_at < TimePoint::max()) return;  // or some have come back since it was planned
  if (full && write_behind_) write_behind_->DropQueued();
  *wake_at = std::min(*wake_at, clock_.Now() + Seconds(1e-3));
}

// The token budget goes to decodes first, then to prompts.
Engine::StepPlan Engine::PlanStep() {
  StepPlan plan;
  std::vector<Part>& parts = plan.parts;
  if (PlanChainStep(&parts)) return plan;
  for (size_t i = 0; i < running_.size(); ++i) {  // preemption takes from the end
    Sequence& sequence = *running_[i];
    if (sequence.state == Sequence::State::kDecoding && Grow(sequence)) {
      PlanDecode(sequence, &parts);
    }
  }
  // However many decode, one chunk of prefill still fits: max_batch_tokens has room for both.
  int budget =
      std::max(options_.slice_tokens - static_cast<int>(parts.size()), pool_.layout().chunk_tokens);
  if (!parts.empty() && options_.step_max > Seconds(0)) {
    budget =
        ShareStep(running_, cost_.fit(), options_.step_max, pool_.layout().chunk_tokens, budget);
  }
  PlanPrefills(budget, &plan);
  for (Part& part : parts) {
    if (part.claim.count > 0) continue;
    part.pages = IdsOf(std::span(part.sequence->table).first(PagesFor(part.start + part.count)));
  }
  return plan;
}

void Engine::PlanPrefills(int budget, StepPlan* plan) {
  const int chunk = pool_.layout().chunk_tokens;
  std::vector<Sequence*> sequences;
  std::vector<PrefillNeed> needs;
  const ComputeFit fit = cost_.fit();
  const TimePoint now = clock_.Now();
  for (auto& sequence : running_) {
    if (sequence->state == Sequence::State::kRestoring && sequence->restoration->done()) {
      EndRestoration(*sequence);
    }
    if (sequence->state == Sequence::State::kPrefilling) {
      if (sequence->chain) continue;  // in a step of its own
      const int left = sequence->prefill_tokens - sequence->kv_tokens;
      needs.push_back(
          {.fresh_chunks = left / chunk, .fresh_s = fit.SecondsFor(sequence->kv_tokens, left)});
    } else if (sequence->state == Sequence::State::kRestoring) {
      const ComputeNeed need = sequence->restoration->Need();
      needs.push_back({.fresh_chunks = need.fresh_chunks,
                       .restoring = true,
                       .fresh_s = need.fresh_s,
                       .idle = need.idle,
                       .rank = need.rank});
    } else {
      continue;
    }
    needs.back().age_s = (now - sequence->submitted).count();
    sequences.push_back(sequence.get());
  }
  const int whole = budget;
  bool sliced = false;
  const auto tokens = [&] {
    int sum = 0;
    for (const Part& part : plan->parts) sum += part.count;
    return sum;
  };
  std::optional<ComputeBudget> shared;
  if (shared_) shared = shared_->Budget(now);
  for (const PrefillTurn& turn :
       OrderPrefills(options_.schedule, needs, options_.restore_wait_max)) {
    Sequence& sequence = *sequences[turn.index];
    if (!needs[turn.index].restoring) {
      PlanPrefill(sequence, &budget, &plan->parts);
      continue;
    }
    // The last tokens of other prompts, one after the other, must not hold up a chunk for ever.
    if (!sliced && budget < chunk && !shared && tokens() + chunk <= model_.max_batch_tokens()) {
      budget = chunk;
    }
    const double share = budget < chunk ? 0 : std::min(1.0, static_cast<double>(budget) / whole);
    ComputeBudget compute{.chunks = budget / chunk, .share = share};
    if (shared) {
      compute = {.chunks = std::clamp(shared->chunks, 0, compute.chunks), .share = shared->share};
    }
    if (turn.chunks_max) compute.chunks = std::min(compute.chunks, *turn.chunks_max);
    const int before = budget;
    PlanRestore(sequence, compute, &budget, plan);
    if (before == budget) continue;
    sliced = true;
    plan->parts.back().restores = needs[turn.index].fresh_chunks == 0;
    if (shared) shared->chunks -= static_cast<int>(PagesFor(before - budget));
  }
}

void Engine::PlanDecode(Sequence& sequence, std::vector<Part>* parts) {
  if (!EnsurePages(sequence, static_cast<int>(sequence.tokens.size()))) return;
  parts->push_back({.sequence = &sequence,
                    .start = sequence.kv_tokens,
                    .count = 1,
                    .claim = {},
                    .samples = true,
                    .pages = {}});
}

void Engine::PlanPrefill(Sequence& sequence, int* budget, std::vector<Part>* parts) {
  const int end = sequence.prefill_tokens;
  // Somebody must make logits: a fully restored prompt computes its last token again, and leaves
  // the page that holds it alone.
  const int start = std::min(sequence.kv_tokens, end - 1);
  int count = std::min(end - start, *budget);
  if (sequence.scores_prompt()) {
    int scored = 0;
    for (const Part& part : *parts) scored += part.sequence->scores_prompt() ? part.count : 0;
    count = std::min(count, options_.scored_tokens_max - scored);
  }
  if (count < 1 || !EnsurePages(sequence, start + count)) return;
  parts->push_back({.sequence = &sequence,
                    .start = start,
                    .count = count,
                    .claim = {},
                    .samples = start + count == end,
                    .pages = {}});
  *budget -= count;
}

void Engine::PlanRestore(Sequence& sequence, const ComputeBudget& compute, int* budget,
                         StepPlan* plan) {
  const int chunk = pool_.layout().chunk_tokens;
  const ComputeTurn turn = sequence.restoration->NextTurn(compute);
  switch (turn.kind) {
    case ComputeTurn::Kind::kDone:  // the last load came just now
      plan->wake_at = clock_.Now();
      return;
    case ComputeTurn::Kind::kWait:
      plan->wake_at = std::min(plan->wake_at, turn.wait_until);
      return;
    case ComputeTurn::Kind::kStarved:
      if (shared_ && !plan->shared_at) plan->shared_at = turn.claim.first * chunk;
      return;
    case ComputeTurn::Kind::kSlice:
      break;
  }
  if (shared_ && !plan->shared_at) plan->shared_at = turn.claim.first * chunk;
  const int chunks = turn.claim.first + turn.claim.count;
  Part part{.sequence = &sequence,
            .start = turn.claim.first * chunk,
            .count = turn.claim.count * chunk,
            .claim = turn.claim,
            .samples = false,
            .pages = sequence.restoration->PageIds(chunks)};
  // The slice that reaches the end of the full chunks takes the rest of the prompt along when the
  // budget allows: one step less.
  const int rest = sequence.prefill_tokens - chunks * chunk;
  const int most = shared_ ? std::min(*budget, compute.chunks * chunk) : *budget;
  const bool last = chunks == static_cast<int>(sequence.keys.size());
  // Of a prompt that several ranks prefill more than a chunk is left.
  if (last && rest < chunk && !sequence.chain && part.count + rest <= most) {
    if (rest > 0 && sequence.tail_page.id() == kNoPage) {
      if (auto page = pool_.Draw()) sequence.tail_page = std::move(*page);
    }
    if (rest == 0 || sequence.tail_page) {
      part.count += rest;
      part.samples = true;
      if (rest > 0) part.pages.push_back(sequence.tail_page.id());
    }
  }
  *budget -= part.count;
  plan->parts.push_back(std::move(part));
}

// The pages of a sequence's first `tokens` tokens; those that miss are drawn. They are promised, so
// false lasts only while late reads or queued writes hold more than was left for them.
bool Engine::EnsurePages(Sequence& sequence, int tokens) {
  while (sequence.table.size() < PagesFor(tokens)) {
    auto page = pool_.Draw();
    if (!page) return false;
    sequence.table.push_back(std::move(*page));
  }
  return true;
}

}  // namespace kvcake
