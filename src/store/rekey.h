// Another key for an encrypted store.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "codec/store_key.h"
#include "store/store_dir.h"
#include "store/store_tools.h"

namespace kvcake {

struct RekeyOptions {
  int threads = 4;  // each has one chunk in memory
  // Called from any of the threads, one at a time.
  std::function<void(uint64_t bytes_done, uint64_t bytes_total)> progress = {};
};

struct RekeyedStore {
  uint64_t chunks = 0;  // have the new key now
  uint64_t bytes = 0;
  uint64_t others = 0;          // of other keys or none; left as they are
  std::vector<BadFile> failed;  // by path; left as they are. `v1` where not all can be listed
};

// Writes every chunk that `from` has encrypted again by `to`, under its new name, each whole and on
// the device before the old one goes: cut short, and called once more, it goes on where it was.
// Owners and times of last use stay. Processes that use the store by either key may go on, and find
// of it what has theirs. kNotFound where there is no store in `dir`; kInvalidArgument where both
// are one key.
Result<RekeyedStore> RekeyStore(const std::string& dir, const StoreKey& from, const StoreKey& to,
                                const RekeyOptions& options = {},
                                FileSystem& fs = FileSystem::Real());

}  // namespace kvcake
