#include "store/open_store.h"

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/callback_thread.h"
#include "base/check.h"
#include "base/cpu.h"
#include "base/dump_json.h"
#include "store/chunk_seal.h"
#include "store/disk_tier.h"
#include "store/encoded_tier.h"
#include "store/late_tier.h"
#include "store/link_trace.h"
#include "store/named_tier.h"
#include "store/redis_store.h"
#include "store/s3_store.h"
#include "store/store_dir.h"
#include "store/store_url.h"
#include "store/throttled_tier.h"

namespace kvcake {
namespace {

constexpr double kNoLinkBytesPerS = 1e12;  // a link with a latency alone
constexpr int kDecodeThreadsMax = 4;       // each may hold a slot of a chunk

// Says how the files of the root are encoded, for people; and nothing else where they are
// encrypted.
std::string WithCodec(const std::string& description, const StoreCodec& codec, bool encrypted) {
  auto json = nlohmann::ordered_json::parse(description, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return description;
  if (encrypted) json = {{"encryption", "AES-256-GCM"}};
  json["codec"] = codec.row->name;
  if (codec.tables && !encrypted) json["codec_tables"] = ToHex(codec.tables_digest);
  return DumpJson(json, 2);
}

Result<ThrottledTierOptions> LinkOf(const StoreOptions& options, const SharedStoreOptions& shared) {
  ThrottledTierOptions link{
      .rate_bytes_per_s = options.load_rate_bytes_per_s.value_or(kNoLinkBytesPerS),
      .latency = options.load_latency,
      .burst_bytes = shared.layout.slab_bytes()};
  if (!options.load_trace.empty()) {
    ASSIGN_OR_RETURN(link.trace, ReadLinkTrace(options.load_trace));
  }
  link.rate_bytes_per_s *= shared.link_scale;
  for (LinkPoint& point : link.trace) point.rate_bytes_per_s *= shared.link_scale;
  return link;
}

// What a store is, and the options that it has.
std::pair<const char*, const char*> KindOf(const StoreOptions& options) {
  if (options.redis) {
    return {"Redis", "codec, tables, key-file, writes, prefix, tls-ca, tls-cert and tls-key"};
  }
  if (options.s3) {
    return {"S3",
            "codec, tables, key-file, writes, endpoint, region, addressing, profile and tls-ca"};
  }
  return {"a directory", "codec, tables, key-file and writes"};
}

}  // namespace

Result<StoreOptions> ReadStoreUrl(std::string_view text) {
  ASSIGN_OR_RETURN(StoreUrl url, ParseStoreUrl(text));
  const auto refuse = [&](const Error& error) {
    return Fail(error.code, "store '{}': {}", WithoutSecrets(text), error.message);
  };
  StoreOptions options;
  if (IsRedisScheme(url.scheme)) {
    auto place = TakeRedisPlace(url);
    if (!place) return refuse(place.error());
    options.redis = std::move(*place);
  } else if (url.scheme == "s3") {
    auto place = TakeS3Place(url);
    if (!place) return refuse(place.error());
    options.s3 = std::move(*place);
  } else if (url.scheme.empty()) {
    options.dir = std::move(url.place);
  } else {
    return refuse({ErrorCode::kUnsupported,
                   fmt::format("there are no stores of the kind {}://, only directories, redis://, "
                               "rediss://, redis+cluster://, rediss+cluster:// and s3://",
                               url.scheme)});
  }
  const auto [kind, known] = KindOf(options);
  for (const auto& [name, value] : url.options) {
    if (name == "codec") {
      const auto row = CodecNamed(value);
      if (!row) return refuse(row.error());
      options.codec = (*row)->codec;
    } else if (name == "tables") {
      options.codec_tables = value;
    } else if (name == "key-file") {
      auto key = StoreKey::Load(value, fmt::format("store '{}': key-file", WithoutSecrets(text)));
      if (!key) return tl::unexpected(key.error());
      options.key = std::make_shared<const StoreKey>(*std::move(key));
    } else if (name == "writes") {
      options.writes = StoreWritesFromName(value);
      if (!options.writes) {
        return refuse({ErrorCode::kInvalidArgument,
                       fmt::format("writes is '{}', must be always, second-use or never", value)});
      }
    } else {
      return refuse({ErrorCode::kUnsupported,
                     fmt::format("{} has no option '{}', but {}", kind, name, known)});
    }
  }
  return options;
}

void LoadStoreCodec(StoreOptions& store) {
  if (store.loaded) return;
  store.loaded = StoreCodec::Load(store.codec.value_or(Codec::kRaw), store.codec_tables, store.dir);
}

Status CheckDistinct(std::span<const StoreOptions> stores) {
  std::vector<std::string> dirs;
  std::set<std::string> places;
  for (const StoreOptions& store : stores) {
    if (store.keeps_files()) {
      dirs.push_back(store.dir);
    } else if (!places.insert(store.Place()).second) {
      return Fail(ErrorCode::kInvalidArgument, "--store {} is given twice: name it once",
                  store.Place());
    }
  }
  return CheckDistinct(dirs);
}

StoreWrites WritesTo(std::span<const StoreOptions> stores, size_t number, StoreWrites first) {
  return stores[number].writes.value_or(number == 0 ? first : StoreWrites::kNever);
}

std::vector<WrittenStore> WrittenStores(std::span<const StoreOptions> stores,
                                        std::span<const std::unique_ptr<Tier>> tiers,
                                        StoreWrites first) {
  CHECK(stores.size() == tiers.size());
  std::vector<WrittenStore> written;
  for (size_t i = 0; i < tiers.size(); ++i) {
    written.emplace_back(tiers[i].get(), WritesTo(stores, i, first));
  }
  return written;
}

std::optional<size_t> ClaimsStore(std::span<const StoreOptions> stores, StoreWrites first) {
  std::optional<size_t> last;
  for (size_t i = stores.size(); i-- > 0;) {
    if (!stores[i].has_claims() || WritesTo(stores, i, first) != StoreWrites::kAlways) continue;
    if (!stores[i].keeps_files()) return i;
    if (!last) last = i;
  }
  return last;
}

std::optional<size_t> SeenStore(std::span<const StoreOptions> stores, StoreWrites first) {
  std::optional<size_t> beside;
  bool is_wanted = false;
  for (size_t i = 0; i < stores.size(); ++i) {
    const bool remembers = WritesTo(stores, i, first) == StoreWrites::kSecondUse;
    if (remembers && stores[i].key) return std::nullopt;
    is_wanted |= remembers;
    if (!beside && stores[i].keeps_files() && !stores[i].key) beside = i;
  }
  return is_wanted ? beside : std::nullopt;
}

ChunkKey FilesRoot(const StoreOptions& store, const ChunkKey& root) {
  StoreOptions with_codec = store;
  LoadStoreCodec(with_codec);
  const ChunkKey chunks = FormRoot(root, with_codec.loaded->Form(/*part_bytes_max=*/0));
  return store.key ? NameOf(*store.key, chunks) : chunks;
}

std::string LossyLineage(std::span<const StoreOptions> stores) {
  std::set<std::string> codecs;  // in an order that does not depend on the stores'
  for (const StoreOptions& store : stores) {
    CHECK(store.loaded.has_value());
    const StoreCodec& codec = *store.loaded;
    if (!codec.row->lossy) continue;
    codecs.insert(codec.row->fit == nullptr
                      ? codec.row->name
                      : fmt::format("{}:{}", codec.row->name, ToHex(codec.tables_digest)));
  }
  return fmt::format("{}", fmt::join(codecs, ","));
}

std::string CodecNames(std::span<const StoreOptions> stores) {
  std::set<std::string> codecs;
  for (const StoreOptions& store : stores) {
    codecs.insert(FindCodec(store.codec.value_or(Codec::kRaw))->name);
  }
  return fmt::format("{}", fmt::join(codecs, ", "));
}

namespace {

// A store by a codec whose tables are not to be had: it holds nothing and keeps nothing.
class UnusableTier : public Tier {
 public:
  UnusableTier(std::string name, Error why) : name_(std::move(name)), why_(std::move(why)) {}

  std::string_view name() const override { return name_; }
  int max_reads_in_flight() const override { return 1; }
  uint64_t max_read_bytes_in_flight() const override { return 0; }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override {
    return std::vector<bool>(keys.size());
  }
  ReadId Get(ReadRequest request) override {
    callbacks_.Soon([done = std::move(request.done)] {
      done(ReadResult{Fail(ErrorCode::kNotFound, "the store has no tables for its codec")});
    });
    return 0;
  }
  void Cancel(ReadId) override {}
  Status Put(const ChunkWrite&) override { return tl::unexpected(why_); }
  Status Evict(const ChunkKey&) override { return {}; }
  TierStats Stats() const override { return {}; }

 private:
  const std::string name_;
  const Error why_;
  CallbackThread callbacks_;  // last: its thread ends before the rest goes
};

// What differs between the tiers of files that one store may have.
struct FilesOptions {
  std::string name = {};
  ChunkKey root = {};
  ChunkForm form = {};
  std::string description = {};
};

Result<std::unique_ptr<Tier>> OpenDisk(const StoreOptions& options,
                                       const SharedStoreOptions& shared, FilesOptions files) {
  DiskTierOptions disk;
  disk.name = std::move(files.name);
  disk.dir = options.dir;
  disk.layout = shared.layout;
  disk.root = files.root;
  disk.form = files.form;
  disk.description = std::move(files.description);
  disk.capacity_bytes = options.capacity_bytes;
  disk.owner_quota_bytes = shared.owner_quota_bytes;
  disk.free_share_min = options.free_share_min;
  disk.call_threads = options.call_threads;
  disk.open_wait = options.open_wait;
  disk.durable = shared.durable;
  disk.time_to_live = shared.time_to_live;
  return DiskTier::Open(std::move(disk));
}

template <typename Place>
tl::unexpected<Error> NoQuotas(const Place& place) {
  return Fail(ErrorCode::kUnsupported,
              "--tenant-store-bytes: {} keeps no quotas, only directories do", place.Text());
}

Result<std::unique_ptr<Tier>> OpenRedis(const StoreOptions& options,
                                        const SharedStoreOptions& shared, FilesOptions files) {
  const RedisPlace& place = *options.redis;
  if (shared.owner_quota_bytes > 0) return NoQuotas(place);
  RedisTierOptions redis;
  ASSIGN_OR_RETURN(redis.client, ClientOptions(place));
  redis.layout = shared.layout;
  redis.root = files.root;
  redis.form = files.form;
  redis.name = std::move(files.name);
  redis.prefix = place.prefix;
  redis.time_to_live = shared.time_to_live;
  return OpenRedisTier(std::move(redis));
}

Result<std::unique_ptr<Tier>> OpenS3(const StoreOptions& options, const SharedStoreOptions& shared,
                                     FilesOptions files) {
  if (shared.owner_quota_bytes > 0) return NoQuotas(*options.s3);
  S3TierOptions s3;
  s3.client.place = *options.s3;
  s3.layout = shared.layout;
  s3.root = files.root;
  s3.form = files.form;
  s3.name = std::move(files.name);
  s3.time_to_live = shared.time_to_live;
  return OpenS3Tier(s3);
}

// What keeps the files, and the link to it.
Result<std::unique_ptr<Tier>> OpenLinked(const StoreOptions& options,
                                         const SharedStoreOptions& shared, FilesOptions files,
                                         const WrapTier& wrap) {
  ASSIGN_OR_RETURN(ThrottledTierOptions link, LinkOf(options, shared));
  ASSIGN_OR_RETURN(std::unique_ptr<Tier> store,
                   (options.redis ? OpenRedis
                    : options.s3  ? OpenS3
                                  : OpenDisk)(options, shared, std::move(files)));
  if (wrap) {
    ASSIGN_OR_RETURN(store, wrap(std::move(store)));
  }
  if (options.load_rate_bytes_per_s || options.load_latency.count() > 0 || !link.trace.empty()) {
    store = std::make_unique<ThrottledTier>(std::move(store), std::move(link));
  }
  if (options.load_stall_share > 0 || options.write_stall_share > 0) {
    store = std::make_unique<LateTier>(std::move(store),
                                       LateTierOptions{.seed = std::random_device()(),
                                                       .share = options.load_stall_share,
                                                       .delay = options.load_stall,
                                                       .write_share = options.write_stall_share,
                                                       .write_delay = options.write_stall});
  }
  return store;
}

// The encoded bytes pass the link; pages that no decoder can touch come last.
Result<std::unique_ptr<Tier>> OpenEncoded(const StoreOptions& options,
                                          const SharedStoreOptions& shared, FilesOptions files,
                                          const WrapTier& wrap) {
  const StoreCodec& codec = *options.loaded;
  auto made = codec.Make(shared.layout, shared.tables_model);
  if (!made) {
    const Error error = made.error();
    spdlog::warn("store {}: nothing is loaded from it, nor kept in it: {}", options.Place(),
                 error.message);
    return std::make_unique<UnusableTier>(files.name, error);
  }
  EncodedTierOptions encoded{.layout = shared.layout, .key = options.key};
  encoded.form = codec.Form((*made)->part_bytes_max());
  encoded.form.encrypted = options.key != nullptr;
  encoded.root = FormRoot(shared.root, encoded.form);
  encoded.decode_threads = std::clamp(UsableCores(), 1, kDecodeThreadsMax);
  files.form = encoded.form;
  files.root = FilesRoot(options, shared.root);
  files.description = WithCodec(files.description, codec, encoded.form.encrypted);
  ASSIGN_OR_RETURN(auto linked, OpenLinked(options, shared, std::move(files), nullptr));
  if (options.key) linked = std::make_unique<NamedTier>(std::move(linked), options.key);
  std::unique_ptr<Tier> store =
      std::make_unique<EncodedTier>(std::move(linked), std::move(*made), encoded);
  return wrap ? wrap(std::move(store)) : std::move(store);
}

}  // namespace

std::string StoreName(size_t number, const StoreOptions& options) {
  const char* const kind = options.redis ? "redis" : options.s3 ? "s3" : "disk";
  return number == 0 ? kind : fmt::format("{}{}{}", kind, options.s3 ? "-" : "", number + 1);
}

Result<std::unique_ptr<Tier>> OpenStore(size_t number, const StoreOptions& given,
                                        const SharedStoreOptions& shared, const WrapTier& wrap) {
  StoreOptions options = given;
  LoadStoreCodec(options);
  FilesOptions files{
      .name = StoreName(number, options), .root = shared.root, .description = shared.description};
  const bool is_raw = options.loaded->row->codec == Codec::kRaw && !options.key;
  return (is_raw ? OpenLinked : OpenEncoded)(options, shared, std::move(files), wrap);
}

}  // namespace kvcake
