// The engine: admits sequences, runs steps, samples, and keeps new chunks. One thread, the engine
// thread, makes every call and owns all scheduling state; load lanes and the write-behind thread
// meet it only in the Restorer and in bounded queues.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cake/prefill_order.h"
#include "cake/restorer.h"
#include "engine/request.h"
#include "model/model.h"
#include "store/write_behind.h"

namespace kvcake {

class Admission;
class ChainPrefill;
class ChunkKeeper;
class Completions;
class PageShortage;
class StepBudget;
class StepCommitter;
class StepPlanner;
class TenantPages;
struct Sequence;
struct StepPlan;
struct StepRun;

struct EngineOptions {
  int slice_tokens = 512;  // the token budget of a step; at least a chunk
  // The most that a step computes of prompts that are scored: each of their tokens has logits,
  // which take memory.
  int scored_tokens_max = 512;
  int max_sequences = 64;      // running at once; more wait
  int waiting_max = 1024;      // beyond max_sequences; more are refused
  int tenant_running_max = 0;  // of one tenant at once; 0: no limit of its own
  // Never promised to sequences: reads in flight draw them. 0 where nothing is read.
  uint64_t read_reserve_pages = 16;
  Seconds step_max{0};  // while anything decodes, slices are expected to end by then; 0: no limit
  Schedule schedule = Schedule::kAdaptive;
  Seconds restore_wait_max{1};  // OrderPrefills'
  Seconds pass_over_max{2};     // AdmissionOptions'
  Seconds stall_timeout{30};    // PageShortageOptions', as the Restorer's
  Seconds warm_up_max{0.3};     // no further warm-up pass is started after this long
};

// What an engine works with; it borrows all of it.
struct EngineParts {
  Model& model;
  PagePool& pool;
  Restorer& restorer;
  ComputeCost& cost;
  WriteBehind* writes = nullptr;  // keeps new chunks; may be null
  const Clock& clock = Clock::Real();
};

// The flag that says how many pages a model of that path has.
std::string_view PagesFlag(NumericPath path);

// What one step did.
struct StepRecord {
  TimePoint began{};
  Seconds took{0};
  int decoded = 0;   // tokens of sequences that write their answers
  int fresh = 0;     // tokens of prompts, in slices that begin where no loading could help
  int restored = 0;  // tokens of prompts, in slices that begin where it could
};

class Engine {
 public:
  Engine(const EngineParts& parts, const EngineOptions& options);
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
  // The oldest result of all, and whose it is; once.
  std::optional<std::pair<SequenceId, Completion>> TakeAny();
  // Empty once the prompt is restored.
  std::optional<RestoreProgress> Progress(SequenceId id) const;

  // Submits one request and runs steps until it is finished. `after_step` may be empty.
  [[nodiscard]] Result<Completion> Answer(Request request,
                                          const std::function<void(SequenceId)>& after_step = {});

  // Runs short forward passes so that memory is touched and the compute cost has its first samples.
  [[nodiscard]] Status WarmUp();
  // Returns when every chunk queued for the store is written or has failed; false when some are
  // given up: at `until`, or when the store takes none for long.
  bool FlushStore(TimePoint until = TimePoint::max());
  // Called on the engine thread after every step that ran the model.
  void SetStepObserver(std::function<void(const StepRecord&)> observer) {
    observer_ = std::move(observer);
  }
  // Called on the engine thread at each layer of a prompt that ranks prefill, which is one step and
  // may take minutes.
  void SetLayerObserver(std::function<void()> observer) { layer_observer_ = std::move(observer); }
  // Long prompts are prefilled by several ranks from now on, as the planner says; borrows both.
  // Prompts that the chain before was to prefill, and with null all, are this process's alone.
  void SetChain(ChainLeader* chain, ChainPlanner* planner);
  // Restorations share steps with others, as it says, from the first request on; borrows it. Null,
  // at any time between steps: they share them with nobody any more.
  void SetStepBudget(StepBudget* budget);

  WriteBehindStats write_stats() const;  // any thread
  // Any thread: has memory forget what requests of this tenant that have ended left in it.
  void DropCachedOf(const std::string& tenant);
  // That all requests together may have, in prompts and answers: the pool's, without the pages that
  // reads in flight draw.
  int64_t tokens_max() const;
  size_t waiting() const;
  size_t running() const;
  uint64_t preemptions() const;

 private:
  void StartAdmitted();
  void StartRestoration(Sequence& sequence);
  std::vector<Slice> BatchOf(const StepPlan& plan);
  [[nodiscard]] Status Run(const StepPlan& plan, std::span<const Slice> batch);
  void RunChained(const StepPlan& plan);
  void LoseChain(const Error& why);
  void Commit(const StepPlan& plan, const StepRun& run);
  void Sleep(TimePoint wake_at);

  const EngineParts parts_;
  const EngineOptions options_;

  std::unique_ptr<ChunkKeeper> keeper_;
  std::unique_ptr<Admission> admission_;
  std::unique_ptr<TenantPages> tenant_pages_;
  std::unique_ptr<Completions> completions_;
  std::unique_ptr<PageShortage> shortage_;
  std::unique_ptr<StepPlanner> planner_;
  std::unique_ptr<StepCommitter> committer_;
  std::unique_ptr<ChainPrefill> chain_;  // null: this process prefills all prompts alone
  StepBudget* budget_ = nullptr;         // may be null
  std::function<void(const StepRecord&)> observer_;
  std::function<void()> layer_observer_;
  SequenceId next_id_ = 1;
};

}  // namespace kvcake
