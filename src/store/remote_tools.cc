#include "store/remote_tools.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "codec/codec.h"
#include "store/chunk_format.h"
#include "store/chunk_seal.h"
#include "store/chunk_walk.h"
#include "store/redis_tools.h"
#include "store/s3_tools.h"

namespace kvcake {
namespace {

// Counts a chunk that is in order; kCorrupt when it is not what its name says, kNotFound when it
// has gone.
Status VerifyValue(RemoteListing& listing, const FoundValue& value, const StoreKey* key,
                   VerifiedStore* verified) {
  ASSIGN_OR_RETURN(std::vector<std::byte> bytes, listing.Read(value));
  ASSIGN_OR_RETURN(const ChunkHeader header, DecodeChunk(bytes));
  RETURN_IF_ERROR(CheckNamed(header, value.id));
  if (key != nullptr) {
    ASSIGN_OR_RETURN(const auto opened, OpenChunkIfBy(*key, header, bytes));
    verified->decrypted += opened.has_value();
  }
  ++verified->chunks;
  verified->bytes += value.bytes;
  ++verified->codecs[FindCodec(header.codec)->name];
  return {};
}

// More have names of some gigabytes.
constexpr size_t kChunksMax = 1 << 25;
// Values in a row that a server refuses to give: then it gives none.
constexpr int kUnreadInARow = 8;

// Pages may repeat a chunk: it is visited once.
Status ForEachChunk(RemoteListing& listing, const std::function<Status(const FoundValue&)>& visit) {
  std::unordered_set<ChunkId> seen;
  return listing.ForEachPage([&](std::span<const FoundValue> found) -> Status {
    for (const FoundValue& value : found) {
      if (seen.insert(value.id).second) RETURN_IF_ERROR(visit(value));
      if (seen.size() <= kChunksMax) continue;
      return Fail(ErrorCode::kResourceExhausted, "it lists over {} chunks", kChunksMax);
    }
    return {};
  });
}

// Removes what it may: one that is refused keeps nothing else.
class Remover {
 public:
  explicit Remover(RemoteListing& listing) : listing_(listing) {}

  Status Remove(std::span<const FoundValue> left) {
    while (!left.empty()) {
      const auto some = left.first(std::min(left.size(), listing_.remove_max()));
      std::vector<std::string> names;
      for (const FoundValue& value : some) names.push_back(value.name);
      ASSIGN_OR_RETURN(const RemovedValues done, listing_.Remove(names));
      for (size_t i = 0; i < some.size(); ++i) {
        if (!done.removed[i]) continue;
        ++cleared_.files;
        cleared_.bytes += some[i].bytes;
      }
      refused_ += done.refused.size();
      if (first_.path.empty() && !done.refused.empty()) first_ = done.refused[0];
      left = left.subspan(some.size());
    }
    return {};
  }
  // What was removed, or what was not.
  Result<ClearedStore> End() const {
    if (refused_ == 0) return cleared_;
    return Fail(ErrorCode::kIo, "{} chunks are removed, and {} are not; {}: {}", cleared_.files,
                refused_, first_.path, first_.reason);
  }

 private:
  RemoteListing& listing_;
  ClearedStore cleared_;
  uint64_t refused_ = 0;
  BadFile first_;
};

}  // namespace

Result<std::unique_ptr<RemoteListing>> OpenRemoteListing(const StoreOptions& options) {
  return options.redis ? OpenRedisListing(*options.redis) : OpenS3Listing(options.s3.value());
}

Result<std::vector<StoreRoot>> ListRemote(RemoteListing& listing) {
  std::map<std::string, StoreRoot> roots;
  RETURN_IF_ERROR(ForEachChunk(listing, [&](const FoundValue& value) -> Status {
    StoreRoot& root = roots[value.id.root.Hex()];
    root.root = value.id.root;
    ++root.chunks;
    root.bytes += value.bytes;
    if (!value.used_s) return {};
    root.newest_use_s = std::max(root.newest_use_s, *value.used_s);
    root.oldest_use_s =
        root.oldest_use_s == 0 ? *value.used_s : std::min(root.oldest_use_s, *value.used_s);
    return {};
  }));
  std::vector<StoreRoot> list;
  for (auto& [hex, root] : roots) list.push_back(std::move(root));
  std::stable_sort(list.begin(), list.end(), [](const StoreRoot& a, const StoreRoot& b) {
    return a.newest_use_s > b.newest_use_s;
  });
  return list;
}

Result<VerifiedStore> VerifyRemote(RemoteListing& listing, const StoreKey* key) {
  VerifiedStore verified;
  int unread = 0;
  RETURN_IF_ERROR(ForEachChunk(listing, [&](const FoundValue& value) -> Status {
    const Status status = VerifyValue(listing, value, key, &verified);
    const ErrorCode code = status ? ErrorCode::kNotFound : status.error().code;
    const bool refused = code == ErrorCode::kInvalidArgument;  // of this one, or of all
    unread = refused ? unread + 1 : 0;
    if (code == ErrorCode::kNotFound) return {};
    if (unread == kUnreadInARow || !(refused || code == ErrorCode::kCorrupt)) return status;
    verified.bad.push_back({value.name, status.error().message});
    return {};
  }));
  if (verified.chunks == 0 && unread > 0) {
    return Fail(ErrorCode::kInvalidArgument, "{}", verified.bad.back().reason);
  }
  std::sort(verified.bad.begin(), verified.bad.end(),
            [](const BadFile& a, const BadFile& b) { return a.path < b.path; });
  return verified;
}

Result<ClearedStore> EvictRemote(RemoteListing& listing, const EvictRule& rule) {
  std::vector<FoundValue> all;
  uint64_t bytes = 0;
  bool has_times = true;
  RETURN_IF_ERROR(ForEachChunk(listing, [&](const FoundValue& value) -> Status {
    bytes += value.bytes;
    has_times = has_times && value.used_s;
    all.push_back(value);
    return {};
  }));
  if (!has_times && (rule.to_bytes || rule.used_before_s)) {
    return Fail(ErrorCode::kUnsupported, "{}: evict by --model only", listing.why_no_times());
  }
  // Those used longest ago first.
  std::sort(all.begin(), all.end(), [](const FoundValue& a, const FoundValue& b) {
    return std::tie(a.used_s, a.name) < std::tie(b.used_s, b.name);
  });
  std::vector<FoundValue> chosen;
  for (FoundValue& value : all) {
    if (rule.to_bytes && bytes <= *rule.to_bytes) break;
    if (rule.used_before_s && *value.used_s >= *rule.used_before_s) break;
    if (rule.roots &&
        std::find(rule.roots->begin(), rule.roots->end(), value.id.root) == rule.roots->end()) {
      continue;
    }
    bytes -= value.bytes;
    chosen.push_back(std::move(value));
  }
  Remover remover(listing);
  RETURN_IF_ERROR(remover.Remove(chosen));
  return remover.End();
}

Result<ClearedStore> ClearRemote(RemoteListing& listing) {
  Remover remover(listing);
  RETURN_IF_ERROR(listing.ForEachPage(
      [&](std::span<const FoundValue> found) { return remover.Remove(found); }));
  RETURN_IF_ERROR(listing.RemoveOthers());
  return remover.End();
}

}  // namespace kvcake
