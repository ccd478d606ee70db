// What was learnt about compute and a tier, kept beside each store so that a fresh process plans
// well from its first slice. A file that is missing, old or damaged teaches nothing and harms
// nothing.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "base/callback_thread.h"
#include "base/clock.h"
#include "cake/restorer.h"
#include "io/file_system.h"
#include "store/write_behind.h"

namespace kvcake {

// Whose costs one file keeps.
struct Learners {
  ComputeCost& compute;
  Restorer& restorer;
  int tier = 0;
  WriteBehind* writes = nullptr;  // may be null
};

// Where the costs of `device`, a text that names it and how it is used, are kept in a store.
std::string CostPath(const std::string& store_dir, const ChunkKey& root, std::string_view device);

// A store's file of costs.
struct KeptCosts {
  std::string path;
  Learners learners;
};
// Teaches what the files of all stores say: the first has the last word about compute.
void LoadCosts(const std::vector<KeptCosts>& files);

// Saves what is learnt in a file for each store: now and then, on a thread of its own, so that a
// process that is killed loses little, and at its end. A file is replaced when all of the new one
// is written, and left alone where nothing was learnt; what fails is only logged.
class CostKeeper {
 public:
  // The learners and `fs` outlive it.
  explicit CostKeeper(std::vector<KeptCosts> files, Seconds interval = Seconds(60),
                      FileSystem& fs = FileSystem::Real());
  ~CostKeeper() { stop_ = true; }

 private:
  struct File {
    KeptCosts kept;
    std::string text = {};  // as it was last written
    bool failed = false;
  };

  void Run();
  void Save(File& file);

  const Seconds interval_;
  FileSystem& fs_;
  std::vector<File> files_;  // the thread's
  std::atomic<bool> stop_{false};
  CallbackThread thread_;  // last: it saves once more before the rest goes
};

}  // namespace kvcake
