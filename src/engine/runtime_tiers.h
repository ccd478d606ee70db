// The tiers of a runtime, opened and wrapped as its flags say: a RAM tier where pages do not lie in
// the host's memory, and the stores.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "kv/page_copier.h"
#include "ops/buffer.h"
#include "store/open_store.h"
#include "store/tier.h"

namespace kvcake {

struct RuntimeTiersOptions {
  SharedStoreOptions shared = {};
  std::vector<StoreOptions> stores = {};
  // Where a copier is given:
  uint64_t ram_capacity_bytes = 0;      // 0: no RAM tier
  bool ram_pinned = true;               // else its chunks are staged, as the stores' are
  uint64_t staging_capacity_bytes = 0;  // of each tier whose chunks are staged
};

class RuntimeTiers {
 public:
  // Without a copier tiers read into pages themselves, and memory has no other chunks than pages.
  // `pinned` is the kind of memory that the copier wants. What the host's memory has no room for is
  // refused, with the numbers.
  static Result<std::unique_ptr<RuntimeTiers>> Open(RuntimeTiersOptions options,
                                                    std::unique_ptr<PageCopier> copier = nullptr,
                                                    Memory pinned = Memory::kPinned);

  Tier* ram() const { return ram_.get(); }  // null where there is none
  // In the order of RuntimeTiersOptions::stores.
  const std::vector<std::unique_ptr<Tier>>& stores() const { return stores_; }
  // The fastest first: RAM, then the stores.
  std::vector<Tier*> all() const;
  // The place of a store among all().
  int NumberOf(size_t store) const { return static_cast<int>(store) + (ram_ != nullptr ? 1 : 0); }

 private:
  RuntimeTiers(RuntimeTiersOptions options, std::unique_ptr<PageCopier> copier, Memory pinned)
      : options_(std::move(options)), copier_(std::move(copier)), pinned_(pinned) {}
  Status OpenRam();
  Result<std::unique_ptr<Tier>> Stage(std::unique_ptr<Tier> tier);

  const RuntimeTiersOptions options_;
  const std::unique_ptr<PageCopier> copier_;
  const Memory pinned_;
  std::list<Buffer> memory_;  // of the RAM tier, and that chunks are staged in
  std::unique_ptr<Tier> ram_;
  std::vector<std::unique_ptr<Tier>> stores_;
};

}  // namespace kvcake
