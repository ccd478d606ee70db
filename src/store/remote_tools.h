// What people do to a store elsewhere by hand: look, read everything back, make room. Safe beside
// processes that use the store.
//
// What is told was found a bounded page at a time, while others may write. All are kIo where a
// server does not answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/open_store.h"
#include "store/store_dir.h"
#include "store/store_tools.h"

namespace kvcake {

struct RemovedValues {
  std::vector<bool> removed;          // of each name; others may have been before
  std::vector<BadFile> refused = {};  // names that stay, and why
};

struct FoundValue {
  ChunkId id;
  std::string name;
  uint64_t bytes = 0;                  // as the store counts them
  std::optional<int64_t> used_s = {};  // unix time; nothing where the store does not tell
};

// One kind of such a store, for one thread at a time.
class RemoteListing {
 public:
  virtual ~RemoteListing() = default;

  // Calls `visit` with a page of chunks after another; it may remove what it is shown.
  virtual Status ForEachPage(const std::function<Status(std::span<const FoundValue>)>& visit) = 0;
  // kNotFound when it has gone, kCorrupt when it is no value that could be a chunk's. Takes memory
  // for no more than a chunk has.
  virtual Result<std::vector<std::byte>> Read(const FoundValue& value) = 0;
  // So many names may be removed with one call.
  virtual size_t remove_max() const = 0;
  virtual Result<RemovedValues> Remove(std::span<const std::string> names) = 0;
  // What is kept beside chunks, such as claims.
  virtual Status RemoveOthers() { return {}; }
  // Why nothing can be said of when chunks were used.
  virtual std::string why_no_times() const = 0;
};

// Opens the store elsewhere that the options name, with the errors of that.
Result<std::unique_ptr<RemoteListing>> OpenRemoteListing(const StoreOptions& options);

// By root, ordered by newest use, newest first; without descriptions and usage, which are kept in
// directories alone. Times are 0 where they are not known.
Result<std::vector<StoreRoot>> ListRemote(RemoteListing& listing);
// Reads every chunk and checks each byte; also decrypts what the key, which may be null, has
// encrypted. Writes nothing: what is bad is removed by who reads it next.
Result<VerifiedStore> VerifyRemote(RemoteListing& listing, const StoreKey* key = nullptr);
// kUnsupported where the rule wants times that are not known.
Result<ClearedStore> EvictRemote(RemoteListing& listing, const EvictRule& rule);
// Removes all that kvcake keeps there.
Result<ClearedStore> ClearRemote(RemoteListing& listing);

}  // namespace kvcake
