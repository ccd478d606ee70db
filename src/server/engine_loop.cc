#include "server/engine_loop.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace kvcake {

EngineLoop::EngineLoop(Engine& engine, Restorer& restorer, JobLimits limits)
    : engine_(engine), restorer_(restorer), limits_(limits) {}

Result<JobId> EngineLoop::Submit(Request request, std::shared_ptr<AnswerSink> sink,
                                 std::optional<StepMark> arrived) {
  std::vector<Entry> entries;
  entries.push_back({.request = std::move(request), .sink = std::move(sink)});
  ASSIGN_OR_RETURN(const std::vector<JobId> ids, Submit(std::move(entries), arrived));
  return ids.front();
}

Result<std::vector<JobId>> EngineLoop::Submit(std::vector<Entry> entries,
                                              std::optional<StepMark> arrived) {
  const std::string tenant = entries.front().request.tenant;
  std::vector<JobId> ids;
  {
    MutexLock lock(mutex_);
    if (stop_) return Fail(ErrorCode::kCancelled, "the server is shutting down");
    if (jobs_ + entries.size() > limits_.jobs_max) {
      return Fail(ErrorCode::kResourceExhausted, "{} requests are being answered or wait already",
                  jobs_);
    }
    const auto of_tenant = stats_.open.find(tenant);
    const size_t open = of_tenant == stats_.open.end() ? 0 : of_tenant->second;
    if (open + entries.size() > limits_.tenant_jobs_max) {
      return Fail(ErrorCode::kResourceExhausted,
                  "{} requests of {} are being answered or wait already, its share of this server "
                  "(--tenant-requests-max)",
                  open, tenant.empty() ? "clients without a tenant's name" : tenant);
    }
    jobs_ += entries.size();
    stats_.open[tenant] += entries.size();
    const bool same_step = arrived && arrived->running && arrived->steps == stats_.steps;
    const double steps_before_s = same_step ? arrived->step_s : StepsSecondsLocked();
    for (Entry& entry : entries) {
      ids.push_back(next_job_++);
      inbox_.push_back({.id = ids.back(),
                        .request = std::move(entry.request),
                        .sink = std::move(entry.sink),
                        .steps_before_s = steps_before_s});
    }
  }
  changed_.NotifyOne();
  restorer_.Wake();
  return ids;
}

StepMark EngineLoop::Now() const {
  MutexLock lock(mutex_);
  return {
      .steps = stats_.steps, .running = step_began_.has_value(), .step_s = StepsSecondsLocked()};
}

void EngineLoop::Cancel(JobId id) {
  {
    MutexLock lock(mutex_);
    cancelled_.push_back(id);
  }
  changed_.NotifyOne();
  restorer_.Wake();
}

void EngineLoop::CancelAll() {
  {
    MutexLock lock(mutex_);
    cancel_all_ = true;
  }
  changed_.NotifyOne();
  restorer_.Wake();
}

void EngineLoop::Stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.NotifyOne();
}

EngineLoopStats EngineLoop::Stats() const {
  MutexLock lock(mutex_);
  EngineLoopStats stats = stats_;
  stats.waiting += inbox_.size();
  stats.step_s = StepsSecondsLocked();
  return stats;
}

Seconds EngineLoop::SinceTurn() const {
  MutexLock lock(mutex_);
  return turn_began_ ? Clock::Real().Now() - *turn_began_ : Seconds(0);
}

void EngineLoop::Post(std::function<void()> work) {
  {
    MutexLock lock(mutex_);
    posted_.push_back(std::move(work));
  }
  changed_.NotifyOne();
  restorer_.Wake();
}

void EngineLoop::Run() {
  engine_.SetLayerObserver([this] { BeginTurn(); });
  while (TakeIn()) {
    told_();
    SetGauges();
    if (!live_.empty()) RunStep();
  }
  engine_.SetLayerObserver({});
}

void EngineLoop::BeginTurn() {
  MutexLock lock(mutex_);
  turn_began_ = Clock::Real().Now();
}

// Does what was posted, starts and cancels what was asked for since the last call; sleeps first
// while there is nothing to do. False when there never will be.
bool EngineLoop::TakeIn() {
  std::vector<Job> jobs;
  std::vector<JobId> cancelled;
  std::vector<std::function<void()>> posted;
  bool all;
  {
    MutexLock lock(mutex_);
    turn_began_.reset();
    while (live_.empty() && inbox_.empty() && !stop_ && cancelled_.empty() && !cancel_all_ &&
           posted_.empty()) {
      changed_.Wait(mutex_);
    }
    if (stop_ && jobs_ == 0) return false;
    turn_began_ = Clock::Real().Now();
    jobs.swap(inbox_);
    stats_.waiting += jobs.size();
    cancelled.swap(cancelled_);
    posted.swap(posted_);
    all = std::exchange(cancel_all_, false);
  }
  for (const auto& work : posted) work();
  for (Job& job : jobs) Start(std::move(job));
  if (all) {
    for (const auto& [job, sequence] : sequences_) engine_.Cancel(sequence);
    return true;
  }
  for (const JobId id : cancelled) {
    if (const auto it = sequences_.find(id); it != sequences_.end()) engine_.Cancel(it->second);
  }
  return true;
}

void EngineLoop::Start(Job job) {
  const std::shared_ptr<AnswerSink> sink = job.sink;
  job.request.on_token = [this, sink = sink.get()](const TokenEvent& event) {
    const TimePoint began = Clock::Real().Now();
    const bool goes_on = sink->OnToken(event);
    handing_out_ += Clock::Real().Now() - began;
    return goes_on;
  };
  const std::string tenant = job.request.tenant;
  const Result<SequenceId> sequence = engine_.Submit(std::move(job.request));
  if (!sequence) return Done(tenant, *sink, tl::unexpected<Error>(sequence.error()));
  live_[*sequence] = {
      .job = job.id, .tenant = tenant, .sink = sink, .steps_before_s = job.steps_before_s};
  sequences_[job.id] = *sequence;
  sink->OnAccepted();
}

// Plan, forward, commit, sample, and stream: the next step waits for all of it.
void EngineLoop::RunStep() {
  const Clock& clock = Clock::Real();
  const TimePoint began = clock.Now();
  handing_out_ = Seconds(0);
  {
    MutexLock lock(mutex_);
    step_began_ = began;
  }
  const Result<bool> more = engine_.Step();
  // The sequences of a step that failed are finished, with an error.
  if (!more) spdlog::error("a step failed: {}", more.error().message);
  const TimePoint stepped = clock.Now();
  SetGauges();
  HandOut();
  told_();
  const TimePoint ended = clock.Now();
  MutexLock lock(mutex_);
  stats_.preemptions = engine_.preemptions();
  ++stats_.steps;
  stats_.step_s += (ended - began).count();
  stats_.delivery_s += (handing_out_ + (ended - stepped)).count();
  step_began_.reset();
}

double EngineLoop::StepsSeconds() const {
  MutexLock lock(mutex_);
  return StepsSecondsLocked();
}

double EngineLoop::StepsSecondsLocked() const {
  if (!step_began_) return stats_.step_s;
  return stats_.step_s + (Clock::Real().Now() - *step_began_).count();
}

void EngineLoop::HandOut() {
  while (auto finished = engine_.TakeAny()) {
    auto node = live_.extract(finished->first);
    if (!node) continue;
    sequences_.erase(node.mapped().job);
    Completion& completion = finished->second;
    completion.steps_s = StepsSeconds() - node.mapped().steps_before_s;
    Done(node.mapped().tenant, *node.mapped().sink, std::move(completion));
  }
}

void EngineLoop::Done(const std::string& tenant, AnswerSink& sink, Result<Completion> completion) {
  sink.OnDone(std::move(completion));
  MutexLock lock(mutex_);
  --jobs_;
  const auto open = stats_.open.find(tenant);
  if (--open->second == 0) stats_.open.erase(open);
}

void EngineLoop::SetGauges() {
  MutexLock lock(mutex_);
  stats_.running = engine_.running();
  stats_.waiting = engine_.waiting();
}

}  // namespace kvcake
