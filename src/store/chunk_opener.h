// The chunk files of a tier: opened, closed and moved away by threads that may wait for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/worker_threads.h"
#include "store/disk_context.h"

namespace kvcake {

// Does what may hang in a directory, DiskTierOptions::call_threads at a time, so that its callers
// never wait. Thread-safe; every answer is called on one of its threads, exactly once, in no order.
// The destructor answers what is left and waits for it.
class ChunkOpener {
 public:
  // The file, or why there is nothing to be read.
  using Answer = std::function<void(Result<std::shared_ptr<File>>)>;

  // Outlives it.
  explicit ChunkOpener(DiskContext& context)
      : context_(context), threads_(context.options.call_threads) {}

  // Opens a chunk's file. One that cannot be a chunk has been moved away when kCorrupt is answered.
  void Open(const ChunkKey& key, bool direct, Answer answer);
  // Opens any file, of which the first `bytes` will come from the device and not from the operating
  // system's cache.
  void OpenUncached(const std::string& path, uint64_t bytes, Answer answer);
  // Moves away the file of a chunk that turned out to be bad, then answers with the reason.
  void MoveAway(const ChunkKey& key, std::shared_ptr<File> file, Error reason, Answer answer);
  void Close(std::shared_ptr<File> file);
  // Chunks' files are not opened from now on: kCancelled.
  void Stop() { stop_ = true; }

 private:
  Result<std::shared_ptr<File>> OpenChunk(const ChunkKey& key, bool direct);
  void MoveAwayNow(const ChunkKey& key, const std::string& path, const Error& reason,
                   const FileInfo& bad);

  DiskContext& context_;
  std::atomic<bool> stop_{false};
  WorkerThreads threads_;  // last: they end before the rest goes
};

}  // namespace kvcake
