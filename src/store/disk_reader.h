// Reads the chunks of a disk tier: the thread that waits for the kernel.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "io/io_queue.h"
#include "store/chunk_opener.h"
#include "store/device_probes.h"
#include "store/disk_context.h"
#include "store/disk_read_queue.h"
#include "store/fault_log.h"
#include "store/tier.h"

namespace kvcake {

// One I/O thread runs every read, calls every `done` and probes a device that does not answer; a
// few open files for it. Thread-safe.
class DiskReader {
 public:
  // Called after a `done`, for a file whose mtime should become now_s; must not block.
  using Touch = std::function<void(std::string path, int64_t now_s)>;

  // `queue` has room for QueueOptions.
  DiskReader(DiskContext& context, std::unique_ptr<IoQueue> queue, Touch touch);
  ~DiskReader() { Stop(); }
  static IoQueueOptions QueueOptions(const DiskTierOptions& options);

  // Tier::Get and Cancel.
  ReadId Get(ReadRequest request) EXCLUDES(mutex_);
  void Cancel(ReadId id) EXCLUDES(mutex_);
  // Cancels what has not started and waits for what the kernel holds: every `done` has been called
  // when it returns.
  void Stop() EXCLUDES(mutex_);

  void AddStats(TierStats& stats) const { reads_.AddStats(stats); }

 private:
  // What was opened for a read or a probe, by its number.
  struct FileAnswer {
    uint64_t tag;
    Result<std::shared_ptr<File>> file;
  };

  void Loop();
  bool TakeWork() EXCLUDES(mutex_);
  void Answer(uint64_t tag, Result<std::shared_ptr<File>> file) EXCLUDES(mutex_);
  DeviceProbes::Files FilesToProbe();
  TimePoint NextCheck() const;

  DiskContext& context_;
  const std::unique_ptr<IoQueue> queue_;  // the I/O thread's, but for Wake

  Mutex mutex_;
  std::vector<std::unique_ptr<DiskRead>> arrived_ GUARDED_BY(mutex_);
  std::vector<ReadId> cancelled_ GUARDED_BY(mutex_);
  std::vector<FileAnswer> answers_ GUARDED_BY(mutex_);
  ReadId next_id_ GUARDED_BY(mutex_) = 1;
  bool stop_ GUARDED_BY(mutex_) = false;

  ChunkOpener opener_;  // ends before what its answers go to

  // The I/O thread's own.
  DiskReadQueue reads_;
  DeviceProbes probes_;
  bool stopping_ = false;
  FaultLog queue_faults_{"waiting for reads"};

  std::thread thread_;
};

}  // namespace kvcake
