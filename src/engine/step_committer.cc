#include "engine/step_committer.h"

#include <algorithm>

namespace kvcake {

bool ModelSamples(const Model& model, const StepPart& part) {
  const Request& request = part.sequence->request;
  return model.samples() && part.samples && !part.chained && !part.sequence->scores_prompt() &&
         !request.logprobs && !request.sampling.edits_logits() &&
         !(part.sequence->must_go_on() && !request.end_tokens.empty());
}

void StepCommitter::Commit(const StepPlan& plan, const StepRun& run) {
  LearnCost(plan, run.took);
  std::span<const int32_t> sampled = model_.sampled();
  std::span<const float> logits = run.logits;
  for (const StepPart& part : plan.parts) {
    size_t rows = part.logit_rows();
    PartResult result{.took = run.took};
    result.alone = plan.parts.size() == 1 && !part.chained && !plan.shared_at && rows <= 1;
    if (ModelSamples(model_, part)) {
      result.token = sampled.front();
      sampled = sampled.subspan(1);
      rows = 0;
    }
    result.logits = logits.first(rows * model_.vocab_size());
    logits = logits.subspan(result.logits.size());
    CommitPart(part, result);
  }
}

// What a step of several prompts took says nothing of either. A token that is decoded beside a
// slice counts as one more of the slice: on a server that always decodes, speeds are to be known,
// too.
void StepCommitter::LearnCost(const StepPlan& plan, Seconds took) {
  const StepPart* slice = nullptr;
  int decoded = 0;
  for (const StepPart& part : plan.parts) {
    if (part.decodes()) {
      ++decoded;
    } else if (slice != nullptr || part.chained || part.logit_rows() > 1) {
      return;
    } else {
      slice = &part;
    }
  }
  if (slice == nullptr || slice->count < decoded || plan.shared_at) return;
  cost_.Add(slice->start, slice->count + decoded, took);
}

void StepCommitter::CommitPart(const StepPart& part, const PartResult& result) {
  Sequence& sequence = *part.sequence;
  if (part.claim.count > 0) {
    sequence.restoration->Computed(part.claim);
    keeper_.StoreClaimed(sequence, part.claim);
    if (!part.samples) return;
    sequence.EndRestoration(model_.layout().chunk_tokens, model_.numeric_path(), clock_.Now());
  } else if (sequence.state == Sequence::State::kPrefilling) {
    sequence.progressed = clock_.Now();
    const double end_s = (sequence.progressed - sequence.opened).count();
    sequence.tail_slices.push_back({.lane = "compute",
                                    .first_token = part.start,
                                    .tokens = part.count,
                                    .start_s = end_s - result.took.count(),
                                    .end_s = end_s});
    if (result.alone && part.samples) sequence.tail = result.took;
  }
  sequence.kv_tokens = std::max(sequence.kv_tokens, part.start + part.count);
  keeper_.PublishFull(sequence);
  if (sequence.scores_prompt()) ScorePrompt(part, result.logits);
  if (!part.samples) return;
  if (result.token) return AcceptToken(sequence, *result.token, {});
  const auto last = result.logits.last(model_.vocab_size());
  const Request& request = sequence.request;
  std::span<const int32_t> banned;
  if (sequence.must_go_on()) banned = request.end_tokens;
  AcceptToken(sequence,
              Choose(last, request.sampling, sequence.tokens, sequence.prompt_tokens(), banned),
              last);
}

// Each row scores the token that comes next.
void StepCommitter::ScorePrompt(const StepPart& part, std::span<const float> logits) {
  Sequence& sequence = *part.sequence;
  const size_t vocab = model_.vocab_size();
  const int last = sequence.prompt_tokens() - 1;
  for (int i = part.start; i < std::min(part.start + part.count, last); ++i) {
    const auto row = logits.subspan((i - part.start) * vocab, vocab);
    sequence.completion.prompt_scores.push_back(
        ScoreToken(row, sequence.tokens[i + 1], sequence.request.top_logprobs));
  }
}

// The logits are for those who asked for log probabilities.
void StepCommitter::AcceptToken(Sequence& sequence, int32_t token, std::span<const float> logits) {
  const Request& request = sequence.request;
  Completion& completion = sequence.completion;
  TokenEvent event{.token = token};
  TokenScore score;
  if (request.logprobs) {
    score = ScoreToken(logits, event.token, request.top_logprobs);
    event.logprob = score.logprob;
    event.top = score.top;
    completion.logprobs.push_back(score.logprob);
    if (sequence.generated() == 0) event.prompt = completion.prompt_scores;
  }
  sequence.tokens.push_back(event.token);
  completion.tokens.push_back(event.token);
  const bool first = completion.tokens.size() == 1;
  const bool prefilled = sequence.state == Sequence::State::kPrefilling;
  sequence.state = Sequence::State::kDecoding;
  if (first) {
    sequence.first_token = clock_.Now();
    completion.ttft_s = (sequence.first_token - sequence.submitted).count();
    sequence.ReportRestoration();
    event.begun = &completion;
  }
  const bool goes_on = !request.on_token || request.on_token(event);
  if (prefilled) {
    sequence.restoration.reset();
    keeper_.Store(sequence);
  }
  const bool ended = std::find(request.end_tokens.begin(), request.end_tokens.end(), event.token) !=
                     request.end_tokens.end();
  if (!goes_on || ended) {
    completions_.Finish(sequence, FinishReason::kStop);
  } else if (sequence.generated() >= request.max_tokens) {
    completions_.Finish(sequence, FinishReason::kLength);
  }
}

}  // namespace kvcake
