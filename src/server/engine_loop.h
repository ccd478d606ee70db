// The engine thread of a server: takes requests in from any thread, runs steps, and hands out
// tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "cake/restorer.h"
#include "engine/engine.h"

namespace kvcake {

// What is told about one request, on the engine thread, which must not be kept waiting: OnAccepted,
// OnToken for each token, OnDone; or OnDone alone. OnDone is called exactly once.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  virtual void OnAccepted() = 0;
  virtual bool OnToken(const TokenEvent& event) = 0;  // false: enough
  virtual void OnDone(Result<Completion> completion) = 0;
};

using JobId = uint64_t;

struct EngineLoopStats {
  size_t running = 0;
  size_t waiting = 0;
  std::map<std::string, size_t> open = {};  // submitted and not done, by tenant
  uint64_t preemptions = 0;
  uint64_t steps = 0;
  double step_s = 0;      // of all steps together, the running one so far too: plan, forward,
                          // commit, sample, stream
  double delivery_s = 0;  // of that: telling the sinks
};

// A moment, as the steps count time.
struct StepMark {
  uint64_t steps = 0;  // that had ended
  bool running = false;
  double step_s = 0;  // what steps had taken, the one that ran included
};

// How many requests may be submitted and not done.
struct JobLimits {
  size_t jobs_max = 0;
  size_t tenant_jobs_max = SIZE_MAX;  // of one tenant (Request::tenant)
};

class EngineLoop {
 public:
  // Borrows everything.
  EngineLoop(Engine& engine, Restorer& restorer, JobLimits limits);
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // ---- any thread ----
  // kResourceExhausted: there are jobs_max already, or the tenant has its share of them; the
  // message says which. kCancelled: stopping. The request's on_token is the loop's to set.
  // Completion::steps_s counts from `arrived`, if only the step of that moment has run since: the
  // request had to wait for it however soon it was submitted; else from now on.
  [[nodiscard]] Result<JobId> Submit(Request request, std::shared_ptr<AnswerSink> sink,
                                     std::optional<StepMark> arrived = {});
  // The same of several requests of one tenant: all of them are taken or none.
  struct Entry {
    Request request = {};
    std::shared_ptr<AnswerSink> sink = {};
  };
  [[nodiscard]] Result<std::vector<JobId>> Submit(std::vector<Entry> entries,
                                                  std::optional<StepMark> arrived = {});
  StepMark Now() const;
  // Its OnDone comes within a step. Unknown ids are ignored.
  void Cancel(JobId id);
  void CancelAll();
  // No more requests; Run returns when those that there are have been answered.
  void Stop();
  EngineLoopStats Stats() const;
  // For how long the engine thread has been at what it does now, a step, one layer of a prompt that
  // ranks prefill, or handing out; 0 while it sleeps. Much longer than any takes: it is stuck.
  Seconds SinceTurn() const;
  // Done on the engine thread before its next step; never, when Run has returned.
  void Post(std::function<void()> work);

  // Before Run: called on the engine thread whenever sinks may have been told something.
  void OnTold(std::function<void()> told) { told_ = std::move(told); }

  // ---- the engine thread ----
  // Answers requests until Stop. Sleeps while there is nothing to do.
  void Run();

 private:
  struct Job {
    JobId id = 0;
    Request request = {};
    std::shared_ptr<AnswerSink> sink = {};
    double steps_before_s = 0;  // what steps had taken when it was submitted
  };
  struct Live {
    JobId job = 0;
    std::string tenant = {};
    std::shared_ptr<AnswerSink> sink = {};
    double steps_before_s = 0;
  };

  bool TakeIn() EXCLUDES(mutex_);
  void Start(Job job);
  void HandOut();
  void RunStep() EXCLUDES(mutex_);
  void BeginTurn() EXCLUDES(mutex_);
  // What steps have taken so far, the one that runs included.
  double StepsSeconds() const EXCLUDES(mutex_);
  double StepsSecondsLocked() const REQUIRES(mutex_);
  void SetGauges() EXCLUDES(mutex_);
  void Done(const std::string& tenant, AnswerSink& sink, Result<Completion> completion)
      EXCLUDES(mutex_);

  // Constant after construction.
  Engine& engine_;
  Restorer& restorer_;
  const JobLimits limits_;
  std::function<void()> told_ = [] {};

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Job> inbox_ GUARDED_BY(mutex_);        // bounded by jobs_max_
  std::vector<JobId> cancelled_ GUARDED_BY(mutex_);  // of live jobs, each once at most
  bool cancel_all_ GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> posted_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;
  JobId next_job_ GUARDED_BY(mutex_) = 1;
  size_t jobs_ GUARDED_BY(mutex_) = 0;  // submitted and not done
  EngineLoopStats stats_ GUARDED_BY(mutex_);
  std::optional<TimePoint> step_began_ GUARDED_BY(mutex_);  // while one runs
  std::optional<TimePoint> turn_began_ GUARDED_BY(mutex_);  // while it does not sleep

  // Owned by the engine thread.
  Seconds handing_out_{0};  // tokens, of the step that runs
  std::map<SequenceId, Live> live_;
  std::unordered_map<JobId, SequenceId> sequences_;
};

}  // namespace kvcake
