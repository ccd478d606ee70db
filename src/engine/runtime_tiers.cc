#include "engine/runtime_tiers.h"

#include <algorithm>
#include <utility>

#include "base/available_memory.h"
#include "store/memory_tier.h"
#include "store/staged_tier.h"

namespace kvcake {

Result<std::unique_ptr<RuntimeTiers>> RuntimeTiers::Open(RuntimeTiersOptions options,
                                                         std::unique_ptr<PageCopier> copier,
                                                         Memory pinned) {
  const uint64_t page = options.shared.layout.page_bytes(),
                 quota = options.shared.owner_quota_bytes;
  if (quota > 0 && quota < page) {
    return Fail(ErrorCode::kInvalidArgument,
                "--tenant-store-bytes of {} bytes holds no chunk: one takes {} bytes (0: no quota)",
                quota, page);
  }
  std::unique_ptr<RuntimeTiers> tiers(
      new RuntimeTiers(std::move(options), std::move(copier), pinned));
  if (tiers->copier_ && tiers->options_.ram_capacity_bytes > 0) RETURN_IF_ERROR(tiers->OpenRam());
  for (size_t i = 0; i < tiers->options_.stores.size(); ++i) {
    ASSIGN_OR_RETURN(auto store,
                     OpenStore(i, tiers->options_.stores[i], tiers->options_.shared,
                               [&](auto tier) { return tiers->Stage(std::move(tier)); }));
    tiers->stores_.push_back(std::move(store));
  }
  return tiers;
}

std::vector<Tier*> RuntimeTiers::all() const {
  std::vector<Tier*> tiers;
  if (ram_) tiers.push_back(ram_.get());
  for (const auto& store : stores_) tiers.push_back(store.get());
  return tiers;
}

Status RuntimeTiers::OpenRam() {
  const uint64_t page = options_.shared.layout.page_bytes();
  const uint64_t bytes = options_.ram_capacity_bytes / page * page;
  if (bytes == 0) {
    return Fail(ErrorCode::kResourceExhausted,
                "--ram-capacity of {} bytes holds no chunk: one takes {} bytes (0: no RAM tier)",
                options_.ram_capacity_bytes, page);
  }
  // Locking more than there is would end processes rather than fail.
  const uint64_t available = AvailableMemoryBytes();
  if (bytes > available) {
    return Fail(ErrorCode::kResourceExhausted,
                "--ram-capacity of {} bytes is more than the {} bytes of memory that this process "
                "may still take",
                options_.ram_capacity_bytes, available);
  }
  auto memory = Buffer::Create(bytes, options_.ram_pinned ? pinned_ : Memory::kHost);
  if (!memory) {
    return Fail(memory.error().code, "{}: lower --ram-capacity, or try --no-ram-pinned",
                memory.error().message);
  }
  const Buffer& slots = memory_.emplace_back(std::move(*memory));
  MemoryTierOptions ram{.layout = options_.shared.layout,
                        .owner_quota_bytes = options_.shared.owner_quota_bytes,
                        .name = "ram"};
  ram.memory = {slots.data(), slots.size()};
  ram.max_read_bytes_in_flight = ram.max_reads_in_flight * page;
  if (options_.ram_pinned) ram.copier = copier_.get();
  ram_ = std::make_unique<MemoryTier>(ram);
  if (!options_.ram_pinned) {
    ASSIGN_OR_RETURN(ram_, Stage(std::move(ram_)));
  }
  return {};
}

// Chunks pass through page-locked memory on their way to pages that the tier cannot touch.
Result<std::unique_ptr<Tier>> RuntimeTiers::Stage(std::unique_ptr<Tier> tier) {
  constexpr int kWriteSlots = 2;
  if (!copier_) return tier;
  const uint64_t page = options_.shared.layout.page_bytes();
  const uint64_t slots = options_.staging_capacity_bytes / page;
  if (slots <= kWriteSlots) {
    return Fail(ErrorCode::kResourceExhausted,
                "--staging-capacity of {} bytes holds {} chunks of {} bytes: it must hold {}",
                options_.staging_capacity_bytes, slots, page, kWriteSlots + 1);
  }
  const int reads =
      static_cast<int>(std::min<uint64_t>(slots - kWriteSlots, tier->max_reads_in_flight()));
  const StagedTierOptions staged{
      .read_slots = reads, .write_slots = kWriteSlots, .layout = options_.shared.layout};
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::Create(staged.staging_bytes(), pinned_));
  const Buffer& staging = memory_.emplace_back(std::move(buffer));
  return std::make_unique<StagedTier>(std::move(tier), *copier_,
                                      std::span(staging.data(), staging.size()), staged);
}

}  // namespace kvcake
