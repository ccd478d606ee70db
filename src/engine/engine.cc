#include "engine/engine.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/check.h"
#include "engine/warm_up.h"
#include "ops/compute.h"

namespace kvcake {

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

std::string_view PagesFlag(NumericPath path) {
  return OnCuda(path) ? "--gpu-memory-utilization" : "--ram-capacity";
}

Engine::Engine(Model& model, PagePool& pool, Restorer& restorer, ComputeCost& cost,
               WriteBehind* writes, const Clock& clock, const EngineOptions& options)
    : model_(model),
      pool_(pool),
      restorer_(restorer),
      cost_(cost),
      write_behind_(writes),
      clock_(clock),
      options_(options) {
  CHECK(options.slice_tokens >= model.layout().chunk_tokens);
  CHECK(options.slice_tokens + options.max_sequences <= model.max_batch_tokens());
  if (options.compute_share) {
    shared_.emplace(*options.compute_share, model, pool, options.slice_tokens);
  }
}

Engine::~Engine() {
  for (auto& sequence : running_) {
    if (sequence->restoration) sequence->restoration->Abandon();
  }
}

uint64_t Engine::PagesFor(int tokens) const {
  const int chunk = pool_.layout().chunk_tokens;
  return (tokens + chunk - 1) / chunk;
}

uint64_t Engine::PagesToPromise() const {
  const uint64_t kept = options_.read_reserve_pages + (shared_ ? shared_->pages() : 0);
  return pool_.pages() - std::min(pool_.pages(), kept);
}

Result<SequenceId> Engine::Submit(Request request) {
  RETURN_IF_ERROR(Validate(request.sampling));
  if (request.prompt.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "the prompt has no tokens");
  }
  for (int32_t token : request.prompt) {
    if (token < 0 || token >= model_.vocab_size()) {
      return Fail(ErrorCode::kInvalidArgument,
                  "token id {} is outside of the model's vocabulary of {}", token,
                  model_.vocab_size());
    }
  }
  if (request.max_tokens < 1) {
    return Fail(ErrorCode::kInvalidArgument, "max_tokens must be 1 or more, not {}",
                request.max_tokens);
  }
  const int prompt = static_cast<int>(request.prompt.size());
  if (prompt >= model_.max_positions()) {
    return Fail(ErrorCode::kInvalidArgument,
                "the prompt has {} tokens and leaves no room for an answer: the model's context is "
                "{} tokens",
                prompt, model_.max_positions());
  }
  request.max_tokens = std::min(request.max_tokens, model_.max_positions() - prompt);
  const uint64_t pages = PagesFor(prompt + request.max_tokens);
  if (pages > PagesToPromise()) {
    return Fail(ErrorCode::kResourceExhausted,
                "{} prompt tokens and up to {} new ones need {} pages of {} bytes, and "
                "{} leaves {}: raise it, or lower max_tokens",
                prompt, request.max_tokens, pages, pool_.layout().page_bytes(),
                PagesFlag(model_.numeric_path()), PagesToPromise());
  }
  if (waiting_.size() + running_.size() >= live_max()) {
    return Fail(ErrorCode::kResourceExhausted, "{} requests are being answered or wait already",
                live_max());
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_++;
  sequence->submitted = clock_.Now();
  sequence->tokens = request.prompt;
  sequence->request = std::move(request);
  const SequenceId id = sequence->id;
  waiting_.push_back(std::move(sequence));
  return id;
}

void Engine::Cancel(SequenceId id) {
  auto is_it = [id](const auto& sequence) { return sequence->id == id; };
  if (auto it = std::find_if(waiting_.begin(), waiting_.end(), is_it); it != waiting_.end()) {
    Finish(**it, FinishReason::kCancelled);
    waiting_.erase(it);
    return;
  }
  if (auto it = std::find_if(running_.begin(), running_.end(), is_it); it != running_.end()) {
    Finish(**it, FinishReason::kCancelled);
    running_.erase(it);
  }
}

void Engine::StartRestoration(Sequence& sequence) {
  const int chunk = pool_.layout().chunk_tokens;
  const bool first = sequence.generated() == 0;
  sequence.state = Sequence::State::kRestoring;
  sequence.prefill_tokens = static_cast<int>(sequence.tokens.size());
  sequence.root = SaltedRoot(model_.identity(), sequence.request.salt);
  if (!sequence.scores_prompt()) sequence.keys = ChunkKeys(sequence.root, sequence.tokens, chunk);
  if (chain_ != nullptr && first) PlanChain(sequence);
  sequence.opened = clock_.Now();
  if (first) sequence.completion.queue_s = (sequence.opened - sequence.submitted).count();
  sequence.restoration = restorer_.Open({
      .keys = sequence.keys,
      .root = sequence.root,
      .chunk_tokens = chunk,
      .prompt_tokens = sequence.prefill_tokens,
      .policy = sequence.request.policy,
      .slice_chunks_max = options_.slice_tokens / chunk,
      .forced_split = first ? sequence.request.forced_split : std::nullopt,
  });
}

Result<bool> Engine::Step() {
  Admit();
  if (running_.empty()) return !waiting_.empty();

  StepPlan plan = PlanStep();
  if (plan.parts.empty() && !plan.shared_at) {
    AwaitPages(&plan.wake_at);
    restorer_.WaitForEvent(plan.wake_at);
    return true;
  }
  if (!plan.parts.empty() && plan.parts[0].chained) {
    RunChainStep(plan);
    EraseFinished();
    return !running_.empty() || !waiting_.empty();
  }
  std::vector<Slice> batch;
  int tokens = 0;
  for (const Part& part : plan.parts) {
    tokens += part.count;
    batch.push_back({
        .tokens = std::span(part.sequence->tokens).subspan(part.start, part.count),
        .start = part.start,
        .pages = part.pages,
        .write_kv = part.start >= part.sequence->kv_tokens || part.claim.count > 0,
        .logits = part.sequence->scores_prompt() ? Slice::Logits::kAll
                  : part.samples                 ? Slice::Logits::kLast
                                                 : Slice::Logits::kNone,
    });
    if (ModelSamples(part)) {
      const Sequence& sequence = *part.sequence;
      batch.back().sampling =
          SamplingAt(sequence.request.sampling, static_cast<int>(sequence.tokens.size()));
    }
  }
  if (plan.shared_at && tokens < options_.slice_tokens) {
    batch.push_back(shared_->Fill(*plan.shared_at, options_.slice_tokens - tokens));
  }
  const TimePoint began = clock_.Now();
  Result<std::span<const float>> forward = model_.Forward(batch);
  if (!forward) {
    for (const Part& part : plan.parts) Finish(*part.sequence, FinishReason::kError);
    EraseFinished();
    return tl::unexpected<Error>(forward.error());
  }
  const Seconds took = clock_.Now() - began;
  if (observer_) Observe(plan, began, took);
  CommitStep(plan, began, took, *forward);
  EraseFinished();
  return !running_.empty() || !waiting_.empty();
}

void Engine::Observe(const StepPlan& plan, TimePoint began, Seconds took) const {
  StepRecord record{.began = began, .took = took};
  for (const Part& part : plan.parts) {
    const bool decodes = part.sequence->state == Sequence::State::kDecoding;
    (decodes ? record.decoded : part.restores ? record.restored : record.fresh) += part.count;
  }
  observer_(record);
}

// It does where nobody else wants the logits.
bool Engine::ModelSamples(const Part& part) const {
  const Request& request = part.sequence->request;
  return model_.samples() && part.samples && !part.chained && !part.sequence->scores_prompt() &&
         !request.logprobs && !request.sampling.penalises();
}

void Engine::CommitStep(const StepPlan& plan, TimePoint began, Seconds took,
                        std::span<const float> logits) {
  if (plan.shared_at) {
    int chunks = 0;
    for (const Part& part : plan.parts) chunks += part.claim.count;
    shared_->Ran(began, chunks);
    const size_t slices = chunks > 0 ? 1 : 0;
    if (plan.parts.size() == slices) cost_.Add(*plan.shared_at, options_.slice_tokens, took);
  }
  std::span<const int32_t> sampled = model_.sampled();
  for (const Part& part : plan.parts) {
    PartResult result;
    size_t rows = part.sequence->scores_prompt() ? part.count : part.samples ? 1 : 0;
    const bool typical = plan.parts.size() == 1 && !part.chained && !plan.shared_at && rows <= 1;
    if (ModelSamples(part)) {
      result.token = sampled.front();
      sampled = sampled.subspan(1);
      rows = 0;
    }
    result.logits = logits.first(rows * model_.vocab_size());
    logits = logits.subspan(result.logits.size());
    Commit(part, took, typical, result);
  }
}

void Engine::EraseFinished() {
  std::erase_if(running_, [](const auto& s) { return s->state == Sequence::State::kFinished; });
}

void Engine::EndRestoration(Sequence& sequence) {
  sequence.table = sequence.restoration->TakePages();
  sequence.kv_tokens = static_cast<int>(sequence.table.size()) * pool_.layout().chunk_tokens;
  if (sequence.tail_page) sequence.table.push_back(std::move(sequence.tail_page));
  // What was computed after chunks of another numeric path is right to rounding only, and a header
  // cannot say so: it is used, but not kept.
  if (sequence.restoration->Progress().mixed_path) {
    sequence.request.store = false;
  } else {
    sequence.numeric_path = model_.numeric_path();
  }
  sequence.state = Sequence::State::kPrefilling;
  if (sequence.generated() == 0) {
    sequence.completion.restore_s = (clock_.Now() - sequence.opened).count();
  }
}

void Engine::Commit(const Part& part, Seconds took, bool alone, const PartResult& result) {
  Sequence& sequence = *part.sequence;
  // What several sequences shared, and what a decode took, says nothing about slices.
  if (alone && sequence.state != Sequence::State::kDecoding) {
    cost_.Add(part.start, part.count, took);
  }
  if (part.claim.count > 0) {
    sequence.restoration->Computed(part.claim, Seconds(0));
    if (!part.samples) return;
    EndRestoration(sequence);
  } else if (sequence.state == Sequence::State::kPrefilling) {
    const double end_s = (clock_.Now() - sequence.opened).count();
    sequence.tail_slices.push_back({.lane = "compute",
                                    .first_token = part.start,
                                    .tokens = part.count,
                                    .start_s = end_s - took.count(),
                                    .end_s = end_s});
    if (alone && part.samples) sequence.tail = took;
  }
  sequence.kv_tokens = std::max(sequence.kv_tokens, part.start + part.count);
  PublishFullChunks(sequence);
  if (sequence.scores_prompt()) ScorePrompt(part, result.logits);
  if (!part.samples) return;
  if (result.token) return AcceptToken(sequence, *result.token, {});
  const auto last = result.logits.last(model_.vocab_size());
  const auto& sampling = sequence.request.sampling;
  AcceptToken(sequence, Choose(last, sampling, sequence.tokens, sequence.prompt_tokens()), last);
}

// Each row is of the token that comes next.
void Engine::ScorePrompt(const Part& part, std::span<const float> logits) {
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
void Engine::AcceptToken(Sequence& sequence, int32_t token, std::span<const float> logits) {
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
  }
  const bool goes_on = !request.on_token || request.on_token(event);
  if (first) ReportRestoration(sequence);
  if (prefilled) {
    sequence.restoration.reset();
    StoreChunks(sequence);
  }
  const bool ended = std::find(request.end_tokens.begin(), request.end_tokens.end(), event.token) !=
                     request.end_tokens.end();
  if (!goes_on || ended) {
    Finish(sequence, FinishReason::kStop);
  } else if (sequence.generated() >= request.max_tokens) {
    Finish(sequence, FinishReason::kLength);
  }
}

// Chunks that the suffix and the generated tokens have filled join the page cache.
void Engine::PublishFullChunks(Sequence& sequence) {
  const size_t chunk = pool_.layout().chunk_tokens;
  while ((sequence.keys.size() + 1) * chunk <= static_cast<size_t>(sequence.kv_tokens)) {
    const size_t i = sequence.keys.size();
    const ChunkKey parent = i == 0 ? sequence.root : sequence.keys.back();
    const auto tokens = std::span(sequence.tokens).subspan(i * chunk, chunk);
    sequence.keys.push_back(ChunkKeys(parent, tokens, static_cast<int>(chunk))[0]);
    sequence.table[i] =
        pool_.Publish(std::move(sequence.table[i]), sequence.keys[i], sequence.numeric_path);
    if (write_behind_ && sequence.request.store) {
      write_behind_->Offer(sequence.keys[i], parent, sequence.numeric_path,
                           sequence.table[i].Share());
    }
  }
}

// Queued only when a prompt is done with, so that writing never delays the first token.
void Engine::StoreChunks(Sequence& sequence) {
  if (!write_behind_ || !sequence.request.store) return;
  for (size_t i = 0; i < sequence.keys.size(); ++i) {
    write_behind_->Offer(sequence.keys[i], i == 0 ? sequence.root : sequence.keys[i - 1],
                         sequence.numeric_path, sequence.table[i].Share());
  }
}

// How the prompt was restored, up to the first token.
void Engine::ReportRestoration(Sequence& sequence) {
  Completion& completion = sequence.completion;
  completion.report = sequence.restoration->Report(sequence.tail);
  for (TimelineEntry& entry : sequence.tail_slices) {
    completion.report.AddTimeline(std::move(entry));
  }
  sequence.tail_slices.clear();
  completion.report.SetActual(Seconds(completion.ttft_s));
  if (completion.chain) completion.report.bound_s = completion.report.efficiency = 0;  // of one
}

void Engine::Finish(Sequence& sequence, FinishReason reason) {
  ReleasePages(sequence);
  Completion& completion = sequence.completion;
  completion.finish_reason = reason;
  if (sequence.restoration && sequence.generated() == 0) ReportRestoration(sequence);
  if (sequence.generated() > 0) {
    completion.decode_s = (clock_.Now() - sequence.first_token).count();
  }
  Deliver(sequence.id, std::move(completion));
  sequence.state = Sequence::State::kFinished;
}

void Engine::Deliver(SequenceId id, Completion completion) {
  finished_[id] = std::move(completion);
  if (finished_.size() > live_max()) finished_.erase(finished_.begin());
}

std::optional<Completion> Engine::Take(SequenceId id) {
  auto node = finished_.extract(id);
  if (!node) return std::nullopt;
  return std::move(node.mapped());
}

std::optional<std::pair<SequenceId, Completion>> Engine::TakeAny() {
  if (finished_.empty()) return std::nullopt;
  auto node = finished_.extract(finished_.begin());
  return std::pair(node.key(), std::move(node.mapped()));
}

Result<Completion> Engine::Answer(Request request,
                                  const std::function<void(SequenceId)>& after_step) {
  ASSIGN_OR_RETURN(const SequenceId id, Submit(std::move(request)));
  while (!finished_.contains(id)) {
    ASSIGN_OR_RETURN(const bool more, Step());
    CHECK(more || finished_.contains(id));
    if (after_step) after_step(id);
  }
  return std::move(*Take(id));
}

std::optional<RestoreProgress> Engine::Progress(SequenceId id) const {
  for (const auto& sequence : running_) {
    if (sequence->id == id && sequence->state == Sequence::State::kRestoring) {
      return sequence->restoration->Progress();
    }
  }
  return std::nullopt;
}

Status Engine::WarmUp() {
  return kvcake::WarmUp(model_, pool_, cost_, clock_,
                        {.slice_tokens = options_.slice_tokens, .max = options_.warm_up_max});
}

void Engine::FlushStore() {
  if (write_behind_) write_behind_->Flush();
}

WriteBehindStats Engine::write_stats() const {
  return write_behind_ ? write_behind_->Stats() : WriteBehindStats{};
}

}  // namespace kvcake
