#include "engine/engine.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/check.h"
#include "engine/admission.h"
#include "engine/chain_prefill.h"
#include "engine/chunk_keeper.h"
#include "engine/completions.h"
#include "engine/page_shortage.h"
#include "engine/step_budget.h"
#include "engine/step_committer.h"
#include "engine/step_planner.h"
#include "engine/warm_up.h"
#include "ops/compute.h"

namespace kvcake {
namespace {

int TokensOf(std::span<const Slice> batch) {
  size_t tokens = 0;
  for (const Slice& slice : batch) tokens += slice.tokens.size();
  return static_cast<int>(tokens);
}

// Before its parts are committed: sequences are where the step found them.
StepRecord RecordOf(const StepPlan& plan, const StepRun& run) {
  StepRecord record{.began = run.began, .took = run.took};
  for (const StepPart& part : plan.parts) {
    (part.decodes()  ? record.decoded
     : part.restores ? record.restored
                     : record.fresh) += part.count;
  }
  return record;
}

// What is wrong with a request whatever else is asked for.
Status CheckRequest(const Request& request, const Model& model) {
  RETURN_IF_ERROR(Validate(request.sampling));
  if (request.prompt.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "the prompt has no tokens");
  }
  for (int32_t token : request.prompt) {
    if (token < 0 || token >= model.vocab_size()) {
      return Fail(ErrorCode::kInvalidArgument,
                  "token id {} is outside of the model's vocabulary of {}", token,
                  model.vocab_size());
    }
  }
  if (request.max_tokens < 0) {
    return Fail(ErrorCode::kInvalidArgument, "max_tokens must be 0 or more, not {}",
                request.max_tokens);
  }
  const int prompt = static_cast<int>(request.prompt.size());
  if (prompt + std::min(request.max_tokens, 1) > model.max_positions()) {
    return Fail(ErrorCode::kInvalidArgument,
                "the prompt has {} tokens{}: the model's context is {} tokens", prompt,
                request.max_tokens > 0 ? " and leaves no room for an answer" : "",
                model.max_positions());
  }
  return {};
}

}  // namespace

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

Engine::Engine(const EngineParts& parts, const EngineOptions& options)
    : parts_(parts), options_(options) {
  const Model& model = parts.model;
  CHECK(options.slice_tokens >= model.layout().chunk_tokens);
  CHECK(options.slice_tokens + options.max_sequences <= model.max_batch_tokens());
  keeper_ = std::make_unique<ChunkKeeper>(parts.pool, parts.writes);
  admission_ =
      std::make_unique<Admission>(parts.pool, *keeper_,
                                  AdmissionOptions{.max_sequences = options.max_sequences,
                                                   .waiting_max = options.waiting_max,
                                                   .tenant_running_max = options.tenant_running_max,
                                                   .read_reserve_pages = options.read_reserve_pages,
                                                   .pass_over_max = options.pass_over_max});
  tenant_pages_ = std::make_unique<TenantPages>(parts.pool);
  completions_ = std::make_unique<Completions>(*admission_, *tenant_pages_, parts.clock);
  shortage_ = std::make_unique<PageShortage>(
      *admission_, *completions_, parts.clock,
      PageShortageOptions{
          .patience = std::min(PageShortageOptions{}.patience, options.stall_timeout / 4),
          .stall_timeout = options.stall_timeout});
  planner_ = std::make_unique<StepPlanner>(
      parts.pool, *admission_, parts.cost, parts.clock,
      StepPlannerOptions{.slice_tokens = options.slice_tokens,
                         .max_batch_tokens = model.max_batch_tokens(),
                         .scored_tokens_max = options.scored_tokens_max,
                         .step_max = options.step_max,
                         .schedule = options.schedule,
                         .restore_wait_max = options.restore_wait_max,
                         .numeric_path = model.numeric_path()});
  committer_ =
      std::make_unique<StepCommitter>(model, parts.cost, *keeper_, *completions_, parts.clock);
}

Engine::~Engine() = default;

void Engine::SetChain(ChainLeader* chain, ChainPlanner* planner) {
  chain_.reset();
  if (chain != nullptr) {
    const auto on_layer = [this] {
      if (layer_observer_) layer_observer_();
    };
    chain_ = std::make_unique<ChainPrefill>(*chain, *planner, *admission_, parts_.model,
                                            parts_.restorer, parts_.cost, on_layer, parts_.clock);
  }
  for (const auto& sequence : admission_->running()) sequence->chain.reset();
}

void Engine::SetStepBudget(StepBudget* budget) {
  CHECK(budget == nullptr || admission_->idle());
  budget_ = budget;
  planner_->SetBudget(budget);
  admission_->SetAside(budget == nullptr ? 0 : budget->pages());
}

Result<SequenceId> Engine::Submit(Request request) {
  const Model& model = parts_.model;
  RETURN_IF_ERROR(CheckRequest(request, model));
  const int prompt = static_cast<int>(request.prompt.size());
  request.max_tokens = std::min(request.max_tokens, model.max_positions() - prompt);
  if (request.max_tokens_yields) {
    request.max_tokens = std::clamp<int64_t>(tokens_max() - prompt, std::min(request.max_tokens, 1),
                                             request.max_tokens);
  }
  const uint64_t pages = admission_->PagesFor(prompt + request.max_tokens);
  if (pages > admission_->pages_max()) {
    return Fail(ErrorCode::kResourceExhausted,
                "{} prompt tokens and up to {} new ones need {} pages of {} bytes, and "
                "{} leaves {}: raise it, or lower max_tokens",
                prompt, request.max_tokens, pages, parts_.pool.layout().page_bytes(),
                PagesFlag(model.numeric_path()), admission_->pages_max());
  }
  if (admission_->full()) {
    return Fail(ErrorCode::kResourceExhausted, "{} requests are being answered or wait already",
                admission_->sequences_max());
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_++;
  sequence->submitted = parts_.clock.Now();
  sequence->tokens = request.prompt;
  sequence->request = std::move(request);
  sequence->root = SaltedRoot(model.identity(), sequence->request.salt);
  sequence->MakeKeys(parts_.pool.layout().chunk_tokens);
  const SequenceId id = sequence->id;
  admission_->Add(std::move(sequence));
  return id;
}

void Engine::Cancel(SequenceId id) {
  const auto sequence = admission_->Remove(id);
  if (sequence) completions_->Finish(*sequence, FinishReason::kCancelled);
}

void Engine::StartRestoration(Sequence& sequence) {
  const int chunk = parts_.pool.layout().chunk_tokens;
  const bool first = sequence.generated() == 0;
  sequence.state = Sequence::State::kRestoring;
  sequence.prefill_tokens = static_cast<int>(sequence.tokens.size());
  if (chain_ && first) {
    const Status divided = chain_->Divide(sequence);
    if (!divided) LoseChain(divided.error());
  }
  sequence.divided = sequence.chain.has_value();
  sequence.opened = parts_.clock.Now();
  if (first) sequence.completion.queue_s = (sequence.opened - sequence.submitted).count();
  sequence.restoration = parts_.restorer.Open({
      .keys = sequence.keys,
      .root = sequence.root,
      .chunk_tokens = chunk,
      .prompt_tokens = sequence.prefill_tokens,
      .policy = sequence.request.policy,
      .slice_chunks_max = options_.slice_tokens / chunk,
      .forced_split = first ? sequence.request.forced_split : std::nullopt,
      .keeps_chunks = parts_.writes != nullptr && sequence.request.store && !sequence.chain,
  });
}

// Where a chain may begin with each of them, one after the other: the next may share its prompt.
void Engine::StartAdmitted() {
  const TimePoint now = parts_.clock.Now();
  if (!chain_) {
    for (Sequence* sequence : admission_->Admit(now)) StartRestoration(*sequence);
    return;
  }
  const auto may = [this](const Sequence& sequence) { return !chain_->ShouldWait(sequence); };
  for (;;) {
    const std::vector<Sequence*> admitted = admission_->Admit(now, 1, may);
    if (admitted.empty()) return;
    StartRestoration(*admitted[0]);
  }
}

Result<bool> Engine::Step() {
  shortage_->Look(parts_.restorer.Stats().late_reads + write_stats().writing);
  StartAdmitted();
  if (admission_->running().empty()) {
    if (admission_->idle()) return false;
    Sleep(TimePoint::max());  // until pages come back
    return true;
  }

  const StepPlan plan = planner_->Plan();
  if (plan.chained()) {
    RunChained(plan);
  } else {
    const std::vector<Slice> batch = BatchOf(plan);
    if (batch.empty()) {
      Sleep(plan.wake_at);
      return true;
    }
    if (const Status run = Run(plan, batch); !run) {
      for (const StepPart& part : plan.parts) {
        completions_->Finish(*part.sequence, FinishReason::kError);
      }
      admission_->EraseFinished();
      return tl::unexpected<Error>(run.error());
    }
  }
  admission_->EraseFinished();
  return !admission_->idle();
}

std::vector<Slice> Engine::BatchOf(const StepPlan& plan) {
  std::vector<Slice> batch;
  for (const StepPart& part : plan.parts) {
    const Sequence& sequence = *part.sequence;
    batch.push_back({
        .tokens = std::span(sequence.tokens).subspan(part.start, part.count),
        .start = part.start,
        .pages = part.pages,
        .write_kv = part.start >= sequence.kv_tokens,
        .logits = sequence.scores_prompt() ? Slice::Logits::kAll
                  : part.samples           ? Slice::Logits::kLast
                                           : Slice::Logits::kNone,
    });
    if (ModelSamples(parts_.model, part)) {
      batch.back().sampling =
          SamplingAt(sequence.request.sampling, static_cast<int>(sequence.tokens.size()));
    }
  }
  const int tokens = TokensOf(batch);
  if (plan.shared_at && tokens < options_.slice_tokens) {
    const auto others = budget_->Fill(*plan.shared_at, options_.slice_tokens - tokens);
    if (others) batch.push_back(*others);
  }
  return batch;
}

Status Engine::Run(const StepPlan& plan, std::span<const Slice> batch) {
  StepRun run{.began = parts_.clock.Now()};
  ASSIGN_OR_RETURN(run.logits, parts_.model.Forward(batch));
  run.took = parts_.clock.Now() - run.began;
  if (plan.shared_at) {
    int chunks = 0;
    for (const StepPart& part : plan.parts) chunks += part.claim.count;
    budget_->Ran(run.began, chunks);
    const size_t slices = chunks > 0 ? 1 : 0;
    if (plan.parts.size() == slices) {
      parts_.cost.Add(*plan.shared_at, TokensOf(batch), run.took);
    }
  }
  Commit(plan, run);
  return {};
}

void Engine::RunChained(const StepPlan& plan) {
  const auto run = chain_->Run(plan.parts[0]);
  if (run) return Commit(plan, *run);
  LoseChain(run.error());
}

// Nothing of its prompts is lost but time: this process computes them.
void Engine::LoseChain(const Error& why) {
  spdlog::error("the chain of ranks is lost, prompts are prefilled by this process alone: {}",
                why.message);
  for (const auto& sequence : admission_->running()) sequence->chain.reset();
}

void Engine::Commit(const StepPlan& plan, const StepRun& run) {
  if (observer_) observer_(RecordOf(plan, run));
  committer_->Commit(plan, run);
}

// No sequence can go on. If that is for want of pages, they come back without an event: look again
// soon.
void Engine::Sleep(TimePoint wake_at) {
  const PagePoolStats stats = parts_.pool.Stats();
  const bool full = stats.referenced == stats.pages;
  if (full || wake_at == TimePoint::max()) {  // or some have come back since it was planned
    wake_at = std::min(wake_at, parts_.clock.Now() + Seconds(1e-3));
  }
  parts_.restorer.WaitForEvent(wake_at);
}

void Engine::DropCachedOf(const std::string& tenant) { tenant_pages_->Drop(tenant); }

std::optional<Completion> Engine::Take(SequenceId id) { return completions_->Take(id); }

std::optional<std::pair<SequenceId, Completion>> Engine::TakeAny() {
  return completions_->TakeAny();
}

Result<Completion> Engine::Answer(Request request,
                                  const std::function<void(SequenceId)>& after_step) {
  ASSIGN_OR_RETURN(const SequenceId id, Submit(std::move(request)));
  while (!completions_->contains(id)) {
    ASSIGN_OR_RETURN(const bool more, Step());
    CHECK(more || completions_->contains(id));
    if (after_step) after_step(id);
  }
  Completion completion = std::move(*Take(id));
  if (!completion.error.empty()) return Fail(ErrorCode::kResourceExhausted, "{}", completion.error);
  return completion;
}

std::optional<RestoreProgress> Engine::Progress(SequenceId id) const {
  for (const auto& sequence : admission_->running()) {
    if (sequence->id == id && sequence->state == Sequence::State::kRestoring) {
      return sequence->restoration->Progress();
    }
  }
  return std::nullopt;
}

Status Engine::WarmUp() {
  return kvcake::WarmUp(parts_.model, parts_.pool, parts_.cost, parts_.clock,
                        {.slice_tokens = options_.slice_tokens, .max = options_.warm_up_max});
}

bool Engine::FlushStore(TimePoint until) {
  return parts_.writes == nullptr || parts_.writes->Flush(until);
}

WriteBehindStats Engine::write_stats() const {
  return parts_.writes != nullptr ? parts_.writes->Stats() : WriteBehindStats{};
}

int64_t Engine::tokens_max() const {
  return static_cast<int64_t>(admission_->pages_max()) * parts_.pool.layout().chunk_tokens;
}

size_t Engine::waiting() const { return admission_->waiting(); }

size_t Engine::running() const { return admission_->running().size(); }

uint64_t Engine::preemptions() const { return admission_->preemptions(); }

}  // namespace kvcake
