// How fast the ranks of a chain have been found to be, kept beside a store.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/file_system.h"

namespace kvcake {

class SpeedsFile {
 public:
  // Empty: nowhere. `fs` outlives what is written.
  SpeedsFile(std::string path, FileSystem& fs);
  // Waits for what is still to be written, and no longer than a second for a directory that hangs.
  ~SpeedsFile();
  SpeedsFile(const SpeedsFile&) = delete;
  SpeedsFile& operator=(const SpeedsFile&) = delete;

  // Nothing where there is no such file, or something else.
  std::vector<double> Load() const;
  // On a thread of its own, soon: what was saved last is kept.
  void Save(const std::vector<double>& speeds);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

// Whether machines can differ by as much.
inline bool IsSpeed(double value) { return value >= 1e-3 && value <= 1e3; }

}  // namespace kvcake
