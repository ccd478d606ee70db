// A tier: a place where chunks are kept (disk, later redis, ...).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/chunk_key.h"
#include "kv/kv_layout.h"

namespace kvcake {

struct ReadResult {
  // ok: the landing holds the chunk, verified. kNotFound: gone since it was looked up (a miss).
  // kCorrupt: failed verification, quarantined. kCancelled, kIo.
  Status status;
  uint64_t bytes = 0;  // delivered
  NumericPath numeric_path = NumericPath::kUnknown;
};

struct ReadRequest {
  ChunkKey key;
  ChunkKey parent;               // the key before it in the chain; checked against the file
  std::span<std::byte> landing;  // PagePool::LandingFor; the tier's until `done` is called
  // Called exactly once, on a thread of the tier, never from within Get. Must not block.
  std::function<void(ReadResult)> done;
};

using ReadId = uint64_t;

// A whole chunk to keep: what a chunk file holds besides its header.
struct ChunkWrite {
  ChunkKey key;
  ChunkKey parent;
  NumericPath numeric_path = NumericPath::kUnknown;
  std::span<const std::byte> page;  // KvLayout::page_bytes(); its first 4 KiB are ignored
};

struct TierStats {
  uint64_t chunks = 0;
  uint64_t bytes = 0;
  uint64_t reads = 0;  // delivered and verified
  uint64_t read_bytes = 0;
  uint64_t reads_failed = 0;  // errors and corrupt chunks
  uint64_t quarantined = 0;
  uint64_t writes = 0;
  uint64_t write_bytes = 0;
  uint64_t writes_failed = 0;
  uint64_t evicted = 0;
  uint64_t evictions_failed = 0;  // files that should have made room and could not be removed
  uint64_t reads_overdue = 0;  // in flight for longer than the tier thinks sane; their buffers are
                               // still the kernel's
};

// Thread-safe. No failure of a tier fails a request: it costs time only. A destructor waits until
// every read's `done` has been called.
class Tier {
 public:
  virtual ~Tier() = default;

  virtual std::string_view name() const = 0;  // "disk": names the tier in reports and metrics
  // How many reads and bytes may be in flight; a caller keeps within both.
  virtual int max_reads_in_flight() const = 0;
  virtual uint64_t max_read_bytes_in_flight() const = 0;

  // One flag per key: whether the tier holds it. A hint: a chunk may be gone when it is read.
  virtual std::vector<bool> Residency(std::span<const ChunkKey> keys) = 0;
  // Starts a read and returns at once.
  virtual ReadId Get(ReadRequest request) = 0;
  // Asks for the read to end early: `done` is still called, with kCancelled or the result.
  virtual void Cancel(ReadId id) = 0;
  // Keeps a chunk; blocks until it can be read back by Get. Keeping what is kept already is ok.
  [[nodiscard]] virtual Status Put(const ChunkWrite& chunk) = 0;
  [[nodiscard]] virtual Status Evict(const ChunkKey& key) = 0;
  virtual TierStats Stats() const = 0;
};

}  // namespace kvcake
