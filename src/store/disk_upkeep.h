// What a disk tier does by itself while it is open, on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/callback_thread.h"
#include "store/disk_context.h"
#include "store/disk_room.h"

namespace kvcake {

// Counts what other processes have written and removes what is too much or too old, however little
// is written here, so that the directory keeps to its capacity. Thread-safe; no call blocks.
class DiskUpkeep {
 public:
  // Both outlive it.
  DiskUpkeep(DiskContext& context, DiskRoom& room) : context_(context), room_(room) {}

  // Begins: at once where the directory holds too much, as when the capacity is smaller than it
  // was.
  void Start();
  // Nothing more is begun, but for what has been asked for, and what is going on ends soon.
  void Stop();
  // Says that the files were used now_s, for other processes to see. A read-only store keeps the
  // mtimes that it has.
  void Touch(std::vector<std::string> paths, int64_t now_s);

 private:
  void Run();

  DiskContext& context_;
  DiskRoom& room_;
  std::atomic<bool> stop_{false};
  CallbackThread thread_;  // last: it ends before the rest goes
};

}  // namespace kvcake
