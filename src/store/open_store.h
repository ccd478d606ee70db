// What `--store` and the flags beside it say, opened.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "codec/store_key.h"
#include "store/redis_place.h"
#include "store/s3_place.h"
#include "store/store_codec.h"
#include "store/store_writes.h"
#include "store/tier.h"

namespace kvcake {

// A directory, Redis servers or a bucket that keep chunks, and a link to them that may be slower or
// worse than it is.
struct StoreOptions {
  std::string dir = {};                  // empty: it is no directory
  std::optional<RedisPlace> redis = {};  // then it is this,
  std::optional<S3Place> s3 = {};        // or this
  uint64_t capacity_bytes = 20ull << 30;
  double free_share_min = 0.01;                      // DiskTierOptions'
  int call_threads = 16;                             // DiskTierOptions'
  Seconds open_wait{1};                              // DiskTierOptions'
  std::optional<double> load_rate_bytes_per_s = {};  // a link slower than the disk
  Seconds load_latency{0};                           // of each read on that link
  std::string load_trace = {};                       // a file of both (store/link_trace.h)
  double load_stall_share = 0;                       // of reads, which are late by load_stall
  Seconds load_stall{0.5};
  double write_stall_share = 0;  // of writes, which take write_stall longer
  Seconds write_stall{0.5};
  // How chunks are kept; nothing: as the caller's default says, which is raw.
  std::optional<Codec> codec = {};
  std::string codec_tables = {};             // StoreCodec::Load's
  std::optional<StoreCodec> loaded = {};     // of these two, once LoadStoreCodec was called
  std::shared_ptr<const StoreKey> key = {};  // encrypts what is kept; null: nothing is encrypted
  std::optional<StoreWrites> writes = {};    // nothing: WritesTo's

  // For people: the directory, or the URL without options and password.
  std::string Place() const { return redis ? redis->Text() : s3 ? s3->Text() : dir; }
  // Whether files that are no chunks can be kept beside them.
  bool keeps_files() const { return !redis && !s3; }
  // Whether processes that share it can claim what they compute.
  bool has_claims() const { return !s3; }
};

// Reads the tables that the codec needs, where that was not done.
void LoadStoreCodec(StoreOptions& store);

// What `url` (store/store_url.h) says; options are `codec`, `tables`, `key-file` and `writes`, and
// those of TakeRedisPlace and TakeS3Place. kInvalidArgument or kUnsupported, with the text but for
// its secrets, what is wrong with it, and what is known; or why the key cannot be read.
Result<StoreOptions> ReadStoreUrl(std::string_view url);

// kInvalidArgument, naming both, when two of them are one place.
Status CheckDistinct(std::span<const StoreOptions> stores);

// What the `number`th of them keeps: as it says, or else the first what `first` says and others
// nothing.
StoreWrites WritesTo(std::span<const StoreOptions> stores, size_t number, StoreWrites first);
// The tiers that the options were opened as, in their order, and what each keeps.
std::vector<WrittenStore> WrittenStores(std::span<const StoreOptions> stores,
                                        std::span<const std::unique_ptr<Tier>> tiers,
                                        StoreWrites first);
// The number of the store where processes claim what they compute: of those that keep all chunks
// and have claims the last that is no directory, or else the last, as most of them share that.
std::optional<size_t> ClaimsStore(std::span<const StoreOptions> stores, StoreWrites first);

// The number of the directory beside which keys met once are remembered, of those without a key of
// their own the first. None where no store wants that; nor where one that does has a key: whoever
// has not that one is not to know keys of its chunks.
std::optional<size_t> SeenStore(std::span<const StoreOptions> stores, StoreWrites first);

// The root that the store's files lie under, where `root` is the model's.
ChunkKey FilesRoot(const StoreOptions& store, const ChunkKey& root);

// What the KV cache of a run depends on that may load chunks from all of these, after
// LoadStoreCodec: its lossy codecs and their tables. Empty: nothing, as what comes is what went.
std::string LossyLineage(std::span<const StoreOptions> stores);
// "int8", or "int8, raw" where stores differ; empty where there is none.
std::string CodecNames(std::span<const StoreOptions> stores);

// What several stores of one process have in common.
struct SharedStoreOptions {
  KvLayout layout = {};
  ChunkKey root = {};
  uint32_t tables_model = 0;     // CodecSpec::model
  std::string description = {};  // DiskTierOptions'
  Seconds time_to_live{0};
  uint64_t owner_quota_bytes = 0;  // in each store; 0: no quotas
  bool durable = false;
  double link_scale = 1;  // of rates and traces
};

// Wraps a tier between the store and its link.
using WrapTier = std::function<Result<std::unique_ptr<Tier>>(std::unique_ptr<Tier>)>;

// The most DiskTierOptions::call_threads.
inline constexpr int kCallThreadsMax = 256;

// The most stores that a process may open.
inline constexpr size_t kStoresMax = 8;

// The name of the `number`th store in reports and metrics: disk, disk2, redis3, s3-4, ...
std::string StoreName(size_t number, const StoreOptions& options);

// kInvalidArgument, kUnsupported or kIo, naming the option or the path. A server need not be
// there: the store is empty until it answers.
Result<std::unique_ptr<Tier>> OpenStore(size_t number, const StoreOptions& options,
                                        const SharedStoreOptions& shared,
                                        const WrapTier& wrap = nullptr);

}  // namespace kvcake
