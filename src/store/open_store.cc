#include "store/open_store.h"

#include <random>
#include <utility>

#include "store/disk_tier.h"
#include "store/late_tier.h"
#include "store/link_trace.h"
#include "store/store_url.h"
#include "store/throttled_tier.h"

namespace kvcake {
namespace {

constexpr double kNoLinkBytesPerS = 1e12;  // a link with a latency alone

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

}  // namespace

Result<StoreOptions> ReadStoreUrl(std::string_view text) {
  ASSIGN_OR_RETURN(const StoreUrl url, ParseStoreUrl(text));
  StoreOptions options;
  ASSIGN_OR_RETURN(options.dir, StoreDirectory(text));
  for (const auto& option : url.options) {
    return Fail(ErrorCode::kUnsupported, "store '{}': a directory has no option '{}'", text,
                option.first);
  }
  return options;
}

std::string StoreName(size_t number) {
  return number == 0 ? "disk" : fmt::format("disk{}", number + 1);
}

Result<std::unique_ptr<Tier>> OpenStore(size_t number, const StoreOptions& options,
                                        const SharedStoreOptions& shared, const WrapTier& wrap) {
  DiskTierOptions disk;
  disk.name = StoreName(number);
  disk.dir = options.dir;
  disk.layout = shared.layout;
  disk.root = shared.root;
  disk.description = shared.description;
  disk.capacity_bytes = options.capacity_bytes;
  disk.owner_quota_bytes = shared.owner_quota_bytes;
  disk.free_share_min = options.free_share_min;
  disk.call_threads = options.call_threads;
  disk.durable = shared.durable;
  disk.time_to_live = shared.time_to_live;
  ASSIGN_OR_RETURN(ThrottledTierOptions link, LinkOf(options, shared));
  ASSIGN_OR_RETURN(std::unique_ptr<Tier> store, DiskTier::Open(std::move(disk)));
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

}  // namespace kvcake
