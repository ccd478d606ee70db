// The engine: admits sequences, runs steps, samples, and keeps new chunks. One thread, the engine
// thread, makes every call and owns all scheduling state; load lanes and the write-behind thread
// meet it only in the Restorer and in bounded queues.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cake/prefill_order.h"
#include "cake/restorer.h"
#include "engine/sequence.h"
#include "engine/shared_steps.h"
#include "engine/write_behind.h"
#include "model/model.h"
#include "runahead/chain.h"

namespace kvcake {

struct EngineOptions {
  int slice_tokens = 512;  // the token budget of a step; at least a chunk
  // Of prompts that are scored, in a step: each of their tokens has logits, which take memory.
  int scored_tokens_max = 512;
  int max_sequences = 64;            // running at once; more wait
  int waiting_max = 1024;            // beyond max_sequences; more are refused
  uint64_t read_reserve_pages = 16;  // never promised to sequences: reads in flight draw them
  Seconds step_max{0};  // while anything decodes, slices are expected to end by then; 0: no limit
  Schedule schedule = Schedule::kAdaptive;
  Seconds restore_wait_max{1};  // OrderPrefills'
  Seconds warm_up_max{0.3};     // no further warm-up pass is started after this long
  // What restorations get of each step, from 0 to 1; the rest goes to requests made up for it, so
  // that a step lasts as long as a full one. Not given: all of it, and steps are as long as needed.
  std::optional<SpeedTrace> compute_share = {};
};

// The flag that says how many pages a model of that path has.
std::string_view PagesFlag(NumericPath path);

// What one step did.
struct StepRecord {
  TimePoint began{};
  Seconds took{0};
  int decoded = 0;   // tokens of sequences that write their answers
  int fresh = 0;     // of prompts, in slices that begin where no loading could help
  int restored = 0;  // of prompts, in slices that begin where it could
};

class Engine {
 public:
  // Borrows everything; `writes` (may be null) keeps new chunks.
  Engine(Model& model, PagePool& pool, Restorer& restorer, ComputeCost& cost, WriteBehind* writes,
         const Clock& clock, const EngineOptions& options);
  ~Engine();

  // Refuses at once (kInvalidArgument, kResourceExhausted) what can never be answered.
  [[nodiscard]] Result<SequenceId> Submit(Request request);
  // Ends a sequence early. Its pages, claims and loads are given back at once; pages under I/O when
  // the kernel is done with them. Unknown ids are ignored. Not from within on_token: return false.
  void Cancel(SequenceId id);

  // Runs one step, or sleeps until a load lane has something new. False when nothing is left to do.
  // Fails only with what a forward pass returned.
  [[nodiscard]] Result<bool> Step();
  // The result of a finished or cancelled sequence; once. As many results wait to be taken as
  // there can be sequences at once; beyond that the oldest are forgotten.
  std::optional<Completion> Take(SequenceId id);
  // Of any of them.
  std::optional<std::pair<SequenceId, Completion>> TakeAny();
  // Empty once the prompt is restored.
  std::optional<RestoreProgress> Progress(SequenceId id) const;

  // Submits one request and runs steps until it is finished. `after_step` may be empty.
  [[nodiscard]] Result<Completion> Answer(Request request,
                                          const std::function<void(SequenceId)>& after_step = {});

  // Runs short forward passes so that memory is touched and the compute cost has its first samples.
  [[nodiscard]] Status WarmUp();
  // Returns when every chunk queued for the store is written or has failed.
  void FlushStore();
  // Called on the engine thread after every step that ran the model.
  void SetStepObserver(std::function<void(const StepRecord&)> observer) {
    observer_ = std::move(observer);
  }
  // Long prompts are prefilled by several ranks from now on, as the planner says; borrows both.
  // Prompts that the chain before was to prefill, and with null all, are this process's alone.
  void SetChain(ChainLeader* chain, ChainPlanner* planner);
  WriteBehindStats write_stats() const;  // any thread
  size_t waiting() const { return waiting_.size(); }
  size_t running() const { return running_.size(); }
  uint64_t preemptions() const { return preemptions_; }

 private:
  // One sequence's part of a step.
  struct Part {
    Sequence* sequence = nullptr;
    int start = 0;
    int count = 0;
    Claim claim;  // count > 0: a restoring slice
    bool samples = false;
    bool restores = false;  // loading might have brought it
    bool chained = false;   // the last part of a prompt that several ranks prefill
    std::vector<PageId> pages;
  };

  // What a step made of it: its rows of logits, or the token that the model has sampled.
  struct PartResult {
    std::span<const float> logits;
    std::optional<int32_t> token;
  };

  // One step's work: what sequences get, and how far into a prompt a restoration is that shares it.
  struct StepPlan {
    std::vector<Part> parts = {};
    std::optional<int> shared_at = {};
    TimePoint wake_at = TimePoint::max();  // with nothing to do: when to plan again
  };

  uint64_t PagesToPromise() const;
  void Admit();
  bool MayGrow(const Sequence& sequence) const;
  bool Grow(Sequence& sequence);
  void PreemptYoungest();
  void ReleasePages(Sequence& sequence);
  void StartRestoration(Sequence& sequence);
  // ---- engine_chain.cc
  void PlanChain(Sequence& sequence);
  bool PlanChainStep(std::vector<Part>* parts);
  void RunChainStep(const StepPlan& plan);
  void DropChain(const Error& error);
  // ----
  StepPlan PlanStep();
  void PlanDecode(Sequence& sequence, std::vector<Part>* parts);
  void PlanPrefills(int budget, StepPlan* plan);
  void PlanPrefill(Sequence& sequence, int* budget, std::vector<Part>* parts);
  void AwaitPages(TimePoint* wake_at);
  void PlanRestore(Sequence& sequence, const ComputeBudget& compute, int* budget, StepPlan* plan);
  void Observe(const StepPlan& plan, TimePoint began, Seconds took) const;
  bool ModelSamples(const Part& part) const;
  void CommitStep(const StepPlan& plan, TimePoint began, Seconds took,
                  std::span<const float> logits);
  bool EnsurePages(Sequence& sequence, int tokens);
  void EndRestoration(Sequence& sequence);
  void Commit(const Part& part, Seconds took, bool alone, const PartResult& result);
  void ScorePrompt(const Part& part, std::span<const float> logits);
  void AcceptToken(Sequence& sequence, int32_t token, std::span<const float> logits);
  void PublishFullChunks(Sequence& sequence);
  void StoreChunks(Sequence& sequence);
  void ReportRestoration(Sequence& sequence);
  void Finish(Sequence& sequence, FinishReason reason);
  void EraseFinished();
  void Deliver(SequenceId id, Completion completion);
  uint64_t PagesFor(int tokens) const;
  // Sequences that run and wait.
  size_t live_max() const { return options_.max_sequences + options_.waiting_max; }

  // Constant after construction.
  Model& model_;
  PagePool& pool_;
  Restorer& restorer_;
  ComputeCost& cost_;
  WriteBehind* const write_behind_;  // may be null
  const Clock& clock_;
  const EngineOptions options_;

  // Owned by the engine thread.
  SequenceId next_id_ = 1;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::map<SequenceId, Completion> finished_;
  uint64_t pages_promised_ = 0;  // to running_, which is in order of submission
  uint64_t preemptions_ = 0;
  std::optional<SharedSteps> shared_;
  std::function<void(const StepRecord&)> observer_;
  ChainLeader* chain_ = nullptr;  // may be null, as is the planner then
  ChainPlanner* chain_planner_ = nullptr;
};

}  // namespace kvcake
