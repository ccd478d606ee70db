// A tier: a place where chunks are kept (disk, later redis, ...).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "kv/chunk_key.h"
#include "kv/kv_layout.h"
#include "store/owner.h"

namespace kvcake {

struct ReadResult {
  // ok: the landing holds the chunk, verified. kNotFound: gone since it was looked up (a miss).
  // kCorrupt: failed verification, quarantined. kCancelled, kIo.
  Status status;
  uint64_t bytes = 0;  // delivered; of a tier below a codec, those that came from the device
  double core_s = 0;   // that a core worked for it, other than to check it: decoding
  NumericPath numeric_path = NumericPath::kUnknown;
};

// Layers [first, first + count), of which there is at least one.
struct LayerRange {
  int first = 0;
  int count = 0;
};

struct ReadRequest {
  ChunkKey key;
  ChunkKey parent;  // the key before it in the chain; checked against the file
  // The tier's until `done` is called. A whole chunk lands in PagePool::LandingFor, as large as a
  // page; some layers in exactly their slabs, so that they may be read into their place in a page.
  std::span<std::byte> landing;
  // Called exactly once, on a thread of the tier, never from within Get. Must not block.
  std::function<void(ReadResult)> done;
  std::optional<LayerRange> layers = {};  // only these; what is read is verified either way
};

// What a read delivers into its landing.
uint64_t ReadBytes(const KvLayout& layout, const ReadRequest& request);
// CHECKs that the request names layers that there are, and that its landing has room for them.
void CheckLanding(const KvLayout& layout, const ReadRequest& request);

// Asks which of `keys` a tier holds.
struct LookRequest {
  std::vector<ChunkKey> keys;
  // Called on a thread of the tier, in order and as answers come, with whether it holds the keys
  // [first, first + held.size()), until all are answered or false is returned: nobody wants to know
  // any more. A tier that is being destroyed holds nothing. Must not block.
  std::function<bool(size_t first, const std::vector<bool>& held)> found;
};

// What a claim of a key has come to.
enum class ClaimState : uint8_t {
  kMine,
  kTheirs,  // another process has claimed it
  kStored,  // the tier holds it: nobody need compute it. A hint, as Residency's
  kNone,    // not claimed: one before it is another's, too many are held, or claims fail
};

// Claims keys for this process, which is about to compute them.
struct ClaimRequest {
  std::vector<ChunkKey> keys;  // in the order in which they will be computed
  // By then they are kept, or claimed again, or nobody need wait for them any more.
  Seconds lasts{30};
  // Called exactly once, on a thread of the tier, with what became of each key. Must not block.
  std::function<void(const std::vector<ClaimState>&)> done;
};

using ReadId = uint64_t;

// A whole chunk to keep: what a chunk file holds besides its header.
struct ChunkWrite {
  ChunkKey key;
  ChunkKey parent;
  NumericPath numeric_path = NumericPath::kUnknown;
  // KvLayout::page_bytes(), of which the first 4 KiB are ignored; below a codec the whole file.
  std::span<const std::byte> page;
  OwnerId owner = kNobody;  // against whose quota it counts, where there are quotas
  // Called once at most, before Put returns, by a tier that has made a copy: it does not read
  // `page` any more. May be null.
  std::function<void()> page_read = {};
  int64_t position = 0;  // of its first token in its prompt; some codecs need it
};

// Calls that have ended, and how long they took together.
struct CallTotals {
  uint64_t calls = 0;
  double seconds = 0;
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
  uint64_t writes_found = 0;  // chunks to be kept that another process had just kept: made twice
  uint64_t evicted = 0;
  uint64_t evictions_failed = 0;  // files that should have made room and could not be removed
  std::optional<uint64_t> free_bytes = {};  // of the file system, where there is one
  uint64_t reads_overdue = 0;  // in flight for longer than the tier thinks sane; their buffers are
                               // still the kernel's
  // Calls on a directory: files opened to be read, files looked for by name, and walks through all
  // of it.
  CallTotals opens = {};
  CallTotals looks = {};
  CallTotals scans = {};
  // Chunks that a codec has written and read, and the time of a core that it took.
  CallTotals encodes = {};
  CallTotals decodes = {};
};

// Thread-safe. No failure of a tier fails a request: it costs time only. A destructor waits until
// every read's `done` has been called.
class Tier {
 public:
  virtual ~Tier() = default;

  virtual std::string_view name() const = 0;  // "disk": names the tier in reports and metrics
  // How many reads and bytes may be in flight, always the same; a caller keeps within both.
  virtual int max_reads_in_flight() const = 0;
  virtual uint64_t max_read_bytes_in_flight() const = 0;
  // How many Puts make headway at the same time; more of them wait for these.
  virtual int max_writes_in_flight() const { return std::numeric_limits<int>::max(); }

  // One flag per key: whether the tier is known to hold it. Known without looking: returns at once,
  // whatever the device does. A hint: a chunk may be gone when it is read.
  virtual std::vector<bool> Residency(std::span<const ChunkKey> keys) = 0;
  // Whether a chunk need not be Put: the tier is known to hold it, and nothing is known against
  // what it holds. Returns at once.
  virtual bool Keeps(const ChunkKey& key) { return Residency({&key, 1})[0]; }
  // Starts to look for keys of which Residency does not know, as another process may have written
  // them, and returns at once. False when Residency knows all there is: nothing is called then.
  virtual bool Look(LookRequest) { return false; }
  // A chunk with a pin is not evicted to make room; other processes do not know of it. Pins count:
  // each Pin is ended by one Unpin, which is a use of all its keys, the first the longest ago. The
  // tier need not hold them. Both return at once.
  virtual void Pin(std::span<const ChunkKey>) {}
  virtual void Unpin(std::span<const ChunkKey>) {}
  // Tells other processes that share the tier which keys this one computes, so that they can wait
  // for what it will Put; those of several of its prompts are its own. Keys are claimed in order up
  // to the first that is another's. Starts and returns at once; false where there are no claims,
  // and nothing is called. A claim ends with the Put of its key, by Disclaim, with its process,
  // however that ends, or after `lasts`. One of another process that this one has seen unchanged
  // for `lasts` has ended, whatever clock that has. So claims cost time at worst: two may compute
  // one chunk.
  virtual bool Claim(ClaimRequest) { return false; }
  virtual void Disclaim(std::span<const ChunkKey>) {}
  // Starts a read and returns at once.
  virtual ReadId Get(ReadRequest request) = 0;
  // Asks for the read to end early: `done` is still called, with kCancelled or the result.
  virtual void Cancel(ReadId id) = 0;
  // Keeps a chunk; blocks until it can be read back by Get. Keeping what is kept already is ok.
  [[nodiscard]] virtual Status Put(const ChunkWrite& chunk) = 0;
  // Removes a chunk, pinned or not; may block. Of what is not there is ok.
  [[nodiscard]] virtual Status Evict(const ChunkKey& key) = 0;
  virtual TierStats Stats() const = 0;
  // What each owner has in the tier, in no order; empty where there are no quotas.
  virtual std::vector<OwnedBytes> Owners() const { return {}; }
};

}  // namespace kvcake
