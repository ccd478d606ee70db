#include "engine/step_planner.h"

#include <algorithm>
#include <utility>

#include "engine/share_step.h"

namespace kvcake {

StepPlan StepPlanner::Plan() {
  std::optional<StepPlan> chained, shared;
  if (!was_chained_) chained = PlanChained();
  if (!chained) shared = PlanShared();
  if (was_chained_ && shared->parts.empty()) chained = PlanChained();
  was_chained_ = chained.has_value();
  return chained ? *std::move(chained) : *std::move(shared);
}

StepPlan StepPlanner::PlanShared() {
  StepPlan plan;
  PlanDecodes(&plan);
  // However many decode, one chunk of prefill still fits: max_batch_tokens has room for both.
  int budget =
      std::max(options_.slice_tokens - static_cast<int>(plan.parts.size()), chunk_tokens());
  if (!plan.parts.empty() && options_.step_max > Seconds(0)) {
    budget =
        ShareStep(admission_.running(), cost_.fit(), options_.step_max, chunk_tokens(), budget);
  }
  PlanPrefills(budget, &plan);
  for (StepPart& part : plan.parts) {
    if (part.claim.count > 0) continue;
    const uint64_t pages = admission_.PagesFor(part.start + part.count);
    part.pages = IdsOf(std::span(part.sequence->table).first(pages));
  }
  return plan;
}

void StepPlanner::EndRestorationIfDone(Sequence& sequence) {
  if (sequence.state != Sequence::State::kRestoring || !sequence.restoration->done()) return;
  sequence.EndRestoration(chunk_tokens(), options_.numeric_path, clock_.Now());
}

// A chain's slice is the only one of its step. None: no prompt of it is ready.
std::optional<StepPlan> StepPlanner::PlanChained() {
  for (const auto& sequence : admission_.running()) {
    if (!sequence->chain) continue;
    EndRestorationIfDone(*sequence);
    const int tokens = sequence->prefill_tokens;
    if (sequence->state != Sequence::State::kPrefilling) continue;
    if (!EnsurePages(*sequence, tokens)) continue;
    const RankJob& job = *sequence->chain;
    const int start = job.origin + job.partition.begin(job.partition.ranks() - 1);
    StepPlan plan;
    plan.parts.push_back({.sequence = sequence.get(),
                          .start = start,
                          .count = tokens - start,
                          .samples = true,
                          .chained = true,
                          .pages = IdsOf(sequence->table)});
    return plan;
  }
  return std::nullopt;
}

void StepPlanner::PlanDecodes(StepPlan* plan) {
  for (size_t i = 0; i < admission_.running().size(); ++i) {  // preemption takes from the end
    Sequence& sequence = *admission_.running()[i];
    if (sequence.state != Sequence::State::kDecoding || !admission_.Grow(sequence)) continue;
    if (!EnsurePages(sequence, static_cast<int>(sequence.tokens.size()))) continue;
    plan->parts.push_back(
        {.sequence = &sequence, .start = sequence.kv_tokens, .count = 1, .samples = true});
  }
}

// Plans what the turns of a step's prompts come to.
class StepPlanner::Turns : public PrefillTaker {
 public:
  Turns(StepPlanner& planner, StepPlan* plan) : planner_(planner), plan_(*plan) {}

  void Add(Sequence& sequence, const PrefillNeed& need) {
    sequences_.push_back(&sequence);
    needs_.push_back(need);
  }
  const std::vector<PrefillNeed>& needs() const { return needs_; }

  int Prefill(int index, int tokens_max) override {
    return planner_.PlanPrefill(*sequences_[index], tokens_max, &plan_);
  }
  ComputeTurn Ask(int index, const ComputeBudget& budget) override {
    Sequence& sequence = *sequences_[index];
    ComputeBudget shared = budget;
    shared.alone = plan_.parts.empty();
    const ComputeTurn turn = sequence.restoration->NextTurn(shared);
    // Without compute it did not come to want a page.
    if (turn.kind != ComputeTurn::Kind::kStarved) planner_.NoteShortage(sequence, turn.lacks_pages);
    return turn;
  }
  int Restore(int index, const Claim& claim, int tokens_max) override {
    plan_.parts.push_back(planner_.RestoringPart(*sequences_[index], claim, tokens_max));
    plan_.parts.back().restores = needs_[index].fresh_chunks == 0;
    return plan_.parts.back().count;
  }

 private:
  StepPlanner& planner_;
  StepPlan& plan_;
  std::vector<Sequence*> sequences_;
  std::vector<PrefillNeed> needs_;
};

void StepPlanner::PlanPrefills(int budget, StepPlan* plan) {
  Turns turns(*this, plan);
  const ComputeFit fit = cost_.fit();
  const TimePoint now = clock_.Now();
  for (const auto& sequence : admission_.running()) {
    EndRestorationIfDone(*sequence);
    if (const auto need = NeedOf(*sequence, fit, now)) turns.Add(*sequence, *need);
  }
  PrefillBudget prefill{.tokens = budget,
                        .room_tokens = options_.max_batch_tokens,
                        .chunk_tokens = chunk_tokens(),
                        .schedule = options_.schedule,
                        .restore_wait_max = options_.restore_wait_max};
  for (const StepPart& part : plan->parts) prefill.room_tokens -= part.count;
  if (budget_ != nullptr) prefill.restorations = budget_->ForRestorations(now);
  const PrefillTurns taken = TakePrefillTurns(prefill, turns.needs(), now, turns);
  plan->wake_at = taken.wake_at;
  if (budget_ != nullptr && taken.wanted_chunk) {
    plan->shared_at = *taken.wanted_chunk * chunk_tokens();
  }
}

// None of a sequence that has nothing to do with prompts, or a chain's, which has a step of its
// own.
std::optional<PrefillNeed> StepPlanner::NeedOf(const Sequence& sequence, const ComputeFit& fit,
                                               TimePoint now) const {
  const double age_s = (now - sequence.submitted).count();
  if (sequence.state == Sequence::State::kRestoring) {
    return RestorationNeed(sequence.restoration->Need(), age_s);
  }
  if (sequence.state != Sequence::State::kPrefilling || sequence.chain) return std::nullopt;
  const int left = sequence.prefill_tokens - sequence.kv_tokens;
  return PrefillNeed{.fresh_chunks = left / chunk_tokens(),
                     .fresh_s = fit.SecondsFor(sequence.kv_tokens, left),
                     .age_s = age_s,
                     .idle = now - sequence.progressed};
}

int StepPlanner::PlanPrefill(Sequence& sequence, int tokens_max, StepPlan* plan) {
  const int end = sequence.prefill_tokens;
  // Somebody must make logits: a fully restored prompt computes its last token again, and leaves
  // the page that holds it alone.
  const int start = std::min(sequence.kv_tokens, end - 1);
  int count = std::min(end - start, tokens_max);
  if (sequence.scores_prompt()) {
    int scored = 0;
    for (const StepPart& part : plan->parts)
      scored += part.sequence->scores_prompt() ? part.count : 0;
    count = std::min(count, options_.scored_tokens_max - scored);
  }
  if (count < 1 || !EnsurePages(sequence, start + count)) return 0;
  plan->parts.push_back(
      {.sequence = &sequence, .start = start, .count = count, .samples = start + count == end});
  return count;
}

StepPart StepPlanner::RestoringPart(Sequence& sequence, const Claim& claim, int tokens_max) {
  const int chunk = chunk_tokens();
  StepPart part{.sequence = &sequence,
                .start = claim.first * chunk,
                .count = claim.count * chunk,
                .claim = claim,
                .pages = sequence.restoration->PageIds(claim.end())};
  // The slice that reaches the end of the full chunks takes the rest of the prompt along when the
  // budget allows: one step less.
  const int rest = sequence.prefill_tokens - claim.end() * chunk;
  const bool last = claim.end() == static_cast<int>(sequence.keys.size());
  // More than a chunk is left of a prompt that several ranks prefill.
  if (!last || rest >= chunk || sequence.chain || part.count + rest > tokens_max) return part;
  if (rest > 0 && sequence.tail_page.id() == kNoPage) {
    if (auto page = pool_.Draw()) sequence.tail_page = std::move(*page);
  }
  if (rest > 0 && !sequence.tail_page) return part;
  part.count += rest;
  part.samples = true;
  if (rest > 0) part.pages.push_back(sequence.tail_page.id());
  return part;
}

// The pages of a sequence's first `tokens` tokens; those that miss are drawn. They are promised, so
// false lasts only while late reads and writes hold more than was left for them (PageShortage).
bool StepPlanner::EnsurePages(Sequence& sequence, int tokens) {
  bool enough = true;
  while (enough && sequence.table.size() < admission_.PagesFor(tokens)) {
    auto page = pool_.Draw();
    enough = page.has_value();
    if (enough) sequence.table.push_back(std::move(*page));
  }
  NoteShortage(sequence, !enough);
  return enough;
}

void StepPlanner::NoteShortage(Sequence& sequence, bool lacks_pages) const {
  if (!lacks_pages) {
    sequence.short_since.reset();
  } else if (!sequence.short_since) {
    sequence.short_since = clock_.Now();
  }
}

}  // namespace kvcake
