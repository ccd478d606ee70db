// What people do to a store directory by hand: read everything back, make room. Safe beside
// processes that use the directory.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "codec/store_key.h"
#include "store/store_dir.h"

namespace kvcake {

struct VerifyOptions {
  int threads = 8;          // that wait for the disk, and check
  bool quarantine = false;  // move bad files away
  // Also decrypts what this key has encrypted.
  std::shared_ptr<const StoreKey> key = {};
  // Called from any of the threads, one at a time.
  std::function<void(uint64_t bytes_done, uint64_t bytes_total)> progress = {};
};

struct BadFile {
  std::string path;
  std::string reason;
  auto operator<=>(const BadFile&) const = default;
};

struct VerifiedStore {
  uint64_t chunks = 0;     // read and in order
  uint64_t decrypted = 0;  // of these, by the key
  uint64_t bytes = 0;
  std::map<std::string, uint64_t> codecs;  // of these chunks, how many by each
  std::vector<BadFile> bad;                // by path
};

// Reads every chunk of every root and checks each byte; writes nothing, but to quarantine. Files
// that vanish meanwhile are passed over; one that cannot be read is bad, and never moved, and so is
// `v1` where a directory of it cannot be listed: the others are verified all the same.
Result<VerifiedStore> VerifyStore(const std::string& dir, const VerifyOptions& options,
                                  FileSystem& fs = FileSystem::Real());

// Which chunks to remove; the conditions that are given must all hold.
struct EvictRule {
  std::optional<std::vector<ChunkKey>> roots = {};  // of these only
  std::optional<int64_t> used_before_s = {};        // last used before this unix time
  // Those used longest ago, until the whole store has no more.
  std::optional<uint64_t> to_bytes = {};
};

// What was used after it was found stays. kIo when other processes make room for all of `patience`;
// the first failure to list a directory or to remove a file, once the others have been tried.
Result<ClearedStore> EvictStore(const std::string& dir, const EvictRule& rule,
                                FileSystem& fs = FileSystem::Real(),
                                Seconds patience = Seconds(10));

}  // namespace kvcake
