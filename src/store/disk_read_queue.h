// The reads that a disk tier has taken on, in the order in which they came.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "io/io_queue.h"
#include "store/chunk_opener.h"
#include "store/disk_context.h"
#include "store/disk_read.h"
#include "store/fault_log.h"

namespace kvcake {

// A read waits for its turn, then for its file to be opened, then for its bytes, and is answered:
//
//   waiting -> at its file -> in flight -> done
//                  ^              |
//                  +--------------+   bad: answered once its file has been moved away
//
// How many there may be at their files and in flight is bounded. Belongs to the I/O thread, but for
// AddStats.
class DiskReadQueue {
 public:
  // What the reads need of others; must not block.
  struct Hooks {
    // Called by a thread of the opener for each Open or MoveAway: the I/O thread then calls OnFile.
    std::function<void(ReadId id, Result<std::shared_ptr<File>> file)> answer;
    // A chunk was used; called after its `done`.
    std::function<void(std::string path, int64_t now_s)> touch;
  };
  // All outlive it; `opener` may call a copy of hooks.answer until its own end.
  DiskReadQueue(DiskContext& context, IoQueue& queue, ChunkOpener& opener, Hooks hooks);

  void Add(std::unique_ptr<DiskRead> read) { waiting_.push_back(std::move(read)); }
  // Ends these reads: at once where the kernel has heard nothing of them, else when it lets go of
  // them. What is not there any more is passed over.
  void Cancel(std::span<const ReadId> ids);
  void CancelAll();
  // Starts those whose turn it is; where the device does not answer all that can be are ended.
  void Start();
  void OnFile(ReadId id, Result<std::shared_ptr<File>> file);
  void OnCompletion(const IoCompletion& completion);
  // Whether a read is wanted that the device may still answer.
  bool is_reading() const;
  bool empty() const { return waiting_.empty() && at_files_.empty() && in_flight_.empty(); }

  // Adds what was read and what failed. Any thread.
  void AddStats(TierStats& stats) const EXCLUDES(mutex_);

 private:
  using Reads = std::unordered_map<ReadId, std::unique_ptr<DiskRead>>;
  using Which = std::function<bool(const DiskRead&)>;

  void CancelWhich(const Which& which);
  void Drop(const Which& which, const Status& status);
  bool HasRoomFor(uint64_t reads) const;
  bool AllAreLost() const;
  ChunkOpener::Answer AnswerTo(ReadId id) const;
  void Submit(DiskRead& read);
  void Land(DiskRead& read);
  void Finish(std::unique_ptr<DiskRead> read, Status status) EXCLUDES(mutex_);
  void Failed(const DiskRead& read, const Error& error) EXCLUDES(mutex_);

  DiskContext& context_;
  IoQueue& queue_;
  ChunkOpener& opener_;
  const Hooks hooks_;
  const uint64_t pieces_;  // at most, of a read: its requests are id * pieces_ + the piece
  FaultLog faults_{"reading chunks"};

  std::deque<std::unique_ptr<DiskRead>> waiting_;
  Reads at_files_;   // the kernel has nothing of them
  Reads in_flight_;  // in the queue now

  mutable Mutex mutex_;
  uint64_t reads_ GUARDED_BY(mutex_) = 0;
  uint64_t read_bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t reads_failed_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcake
