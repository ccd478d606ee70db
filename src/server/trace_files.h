// A Chrome trace of each answer in a directory that does not outgrow its bound.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "cake/report.h"

namespace kvcake {

// Any thread. Files are written by a thread of its own: a slow disk holds up no answer.
class TraceFiles {
 public:
  static constexpr size_t kQueueMax = 256;  // traces that wait to be written; more are dropped

  // Makes the directory (kIo). At most `files_max` traces are in it, those of earlier processes
  // included: the oldest are removed.
  static Result<std::unique_ptr<TraceFiles>> Open(const std::string& dir, size_t files_max);
  // Writes what is queued.
  ~TraceFiles();
  TraceFiles(const TraceFiles&) = delete;
  TraceFiles& operator=(const TraceFiles&) = delete;

  // To DIR/<id>.trace.json. A write that fails is logged, once until one works again; a trace that
  // is dropped, each time.
  void Write(const std::string& id, RestoreReport report);

 private:
  TraceFiles(const std::string& dir, size_t files_max) : dir_(dir), files_max_(files_max) {}
  Status FindFiles();
  void Work() EXCLUDES(mutex_);
  Status WriteOne(const std::string& path, const RestoreReport& report);

  // Constant after construction.
  const std::string dir_;
  const size_t files_max_;

  // Owned by the thread.
  std::deque<std::string> files_;  // ours, the oldest first
  bool failing_ = false;

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::pair<std::string, RestoreReport>> queue_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace kvcake
