#include "store/disk_reader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/cpu.h"
#include "store/chunk_kind.h"

namespace kvcake {
namespace {

constexpr std::chrono::milliseconds kFailedQueuePause{20};

}  // namespace

IoQueueOptions DiskReader::QueueOptions(const DiskTierOptions& options) {
  IoQueueOptions queue;
  queue.requests_max = options.max_reads_in_flight * static_cast<int>(PiecesMax(options));
  queue.requests_max += DeviceProbes::kProbesMax;
  queue.bytes_max =
      options.max_read_bytes_in_flight + DeviceProbes::kProbesMax * DeviceProbes::kProbeBytes;
  return queue;
}

DiskReader::DiskReader(DiskContext& context, std::unique_ptr<IoQueue> queue, Touch touch)
    : context_(context),
      queue_(std::move(queue)),
      opener_(context),
      reads_(context, *queue_, opener_,
             {.answer = [this](ReadId id, auto file) { Answer(id, std::move(file)); },
              .touch = std::move(touch)}),
      probes_(context.health, *queue_, context.options.overdue_after, FilesToProbe()),
      thread_([this] { Loop(); }) {}

DeviceProbes::Files DiskReader::FilesToProbe() {
  DeviceProbes::Files files;
  files.open = [this](uint64_t tag, const std::string& path) {
    opener_.OpenUncached(path, DeviceProbes::kProbeBytes,
                         [this, tag](auto file) { Answer(tag, std::move(file)); });
  };
  files.close = [this](auto file) { opener_.Close(std::move(file)); };
  files.sample = [this](uint64_t number) -> std::optional<std::string> {
    const auto file = context_.index.files().Sample(number);
    return file ? std::optional(context_.store.ChunkPath(file->id)) : std::nullopt;
  };
  return files;
}

void DiskReader::Stop() {
  opener_.Stop();
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  queue_->Wake();
  if (thread_.joinable()) thread_.join();
}

ReadId DiskReader::Get(ReadRequest request) {
  ChunkKind::Of(context_.options).CheckRequest(request);
  CHECK(context_.options.form.raw() || IsAligned(request.landing));
  auto read = std::make_unique<DiskRead>(std::move(request), context_.options);
  ReadId id;
  {
    MutexLock lock(mutex_);
    id = read->id = next_id_++;
    arrived_.push_back(std::move(read));
  }
  queue_->Wake();
  return id;
}

void DiskReader::Cancel(ReadId id) {
  {
    MutexLock lock(mutex_);
    cancelled_.push_back(id);
  }
  queue_->Wake();
}

// On a thread of the opener.
void DiskReader::Answer(uint64_t tag, Result<std::shared_ptr<File>> file) {
  {
    MutexLock lock(mutex_);
    answers_.push_back({tag, std::move(file)});
  }
  queue_->Wake();
}

void DiskReader::Loop() {
  RunPromptly();
  std::vector<IoCompletion> completions;
  while (TakeWork()) {
    const TimePoint now = Clock::Real().Now();
    context_.health.Check(now);
    if (!stopping_) probes_.StartIfDue(now);
    reads_.Start();
    context_.write_turns.SetReading(reads_.is_reading());
    completions.clear();
    const auto waited = queue_->Wait(completions, NextCheck());
    context_.health.SetQueueFails(!waited);
    if (waited) {
      queue_faults_.Succeeded();
    } else {
      // It is the only way to learn that a buffer is ours again: reads in flight go on waiting.
      queue_faults_.Failed(waited.error());
      std::this_thread::sleep_for(kFailedQueuePause);
    }
    for (const IoCompletion& completion : completions) {
      if (DeviceProbes::IsProbe(completion.user_data)) {
        probes_.Completed(completion);
      } else {
        reads_.OnCompletion(completion);
      }
      // What has come is verified for a while: the device reads the next meanwhile, and not after
      // the last of those that came together.
      (void)TakeWork();
      reads_.Start();
    }
  }
}

// Takes over what callers and the opener have left; false when all is done and the tier is being
// destroyed.
bool DiskReader::TakeWork() {
  std::vector<ReadId> cancelled;
  std::vector<FileAnswer> answers;
  {
    MutexLock lock(mutex_);
    for (auto& read : arrived_) reads_.Add(std::move(read));
    arrived_.clear();
    cancelled.swap(cancelled_);
    answers.swap(answers_);
    stopping_ = stop_;
  }
  if (stopping_) {
    reads_.CancelAll();
  } else {
    reads_.Cancel(cancelled);
  }
  for (FileAnswer& answer : answers) {
    if (DeviceProbes::IsProbe(answer.tag)) {
      probes_.Opened(answer.tag, std::move(answer.file));
    } else {
      reads_.OnFile(answer.tag, std::move(answer.file));
    }
  }
  if (stopping_) probes_.Cancel();
  return !stopping_ || !reads_.empty() || !probes_.empty();
}

// When the I/O thread has to look again although nothing came.
TimePoint DiskReader::NextCheck() const {
  const TimePoint now = Clock::Real().Now();
  const TimePoint next = context_.health.NextCheck(now);
  const auto probe = stopping_ ? std::nullopt : probes_.NextStart(now);
  return probe ? std::min(next, *probe) : next;
}

}  // namespace kvcake
