// Where chunks are kept elsewhere as named values, each of the bytes of a chunk file: what differs
// between Redis and S3. RemoteTier is a tier over one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/status.h"
#include "kv/chunk_key.h"
#include "store/tier.h"

namespace kvcake {

struct RemoteGet {
  ChunkKey key;
  uint64_t offset = 0;
  std::span<std::byte> landing;  // of so many bytes from there, until `done`
  bool is_whole = false;         // the value has no other bytes than these; `offset` is 0
  bool may_be_shorter = false;   // a whole value, of which only the most it can have is known
  // Whether anybody still wants it; asked on the store's thread. Never null.
  std::function<bool()> is_wanted;
  // Called exactly once, never from within Get: how many bytes have landed, all unless it may be
  // shorter. kNotFound: there is no such value; kCorrupt: it is of another length, or no value that
  // could be a chunk's; kIo; kDeadline; kCancelled.
  std::function<void(Result<uint64_t>)> done;
};

// What became of a value that was put.
enum class PutOutcome { kKept, kWasThere };

class RemoteStore {
 public:
  // After Close. What is still to be called is called before it ends.
  virtual ~RemoteStore() = default;

  // Runs a function on the store's thread, soon and in the order of the calls. Any thread.
  virtual void Post(std::function<void()> function) = 0;

  // On the store's thread, as long as it is not closing.
  virtual void Get(RemoteGet get) = 0;
  // `done` is called exactly once, never from within Has.
  virtual void Has(const ChunkKey& key, std::function<void(Result<bool>)> done) = 0;
  // Removes what turned out to be bad; what becomes of it nobody is told.
  virtual void Discard(const ChunkKey& key) = 0;
  // Whether a use renews what would expire, and such a use.
  virtual bool renews() const { return false; }
  virtual void Touch(std::span<const ChunkKey>) {}
  // Tier's; false where there are no claims. What the requests say is done on the store's thread.
  virtual bool Claim(ClaimRequest) { return false; }
  virtual void Disclaim(std::span<const ChunkKey>) {}
  // Ends what is pending with kCancelled, and calls `closed`.
  virtual void Close(std::function<void()> closed) = 0;
  virtual bool is_closing() const = 0;

  // From any other thread, which waits; not after Close. What is there already stays.
  virtual Result<PutOutcome> Put(const ChunkKey& key,
                                 std::span<const std::span<const std::byte>> pieces) = 0;
  // Whether there was one, as far as can be told.
  virtual Result<bool> Remove(const ChunkKey& key) = 0;
};

}  // namespace kvcake
