// Which cached pages are whose, for a tenant that wants its own forgotten.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/mutex.h"
#include "kv/page_pool.h"

namespace kvcake {

// Chunks' keys by the tenant whose requests had them; no two tenants with caches of their own have
// the same. Thread-safe.
class TenantPages {
 public:
  // Remembers at most twice as many keys as the pool, which is borrowed, has pages.
  explicit TenantPages(PagePool& pool) : pool_(pool) {}

  // When the tenant's request has ended; "" has no cache of its own, and nothing is remembered.
  void Note(const std::string& tenant, std::span<const ChunkKey> keys) EXCLUDES(mutex_);
  // Forgets those of this tenant's pages that no request uses. What still runs is not asked.
  void Drop(const std::string& tenant) EXCLUDES(mutex_);
  size_t keys() const EXCLUDES(mutex_);

 private:
  void ForgetEvicted() REQUIRES(mutex_);

  PagePool& pool_;
  mutable Mutex mutex_;
  std::unordered_map<std::string, std::unordered_set<ChunkKey>> by_tenant_ GUARDED_BY(mutex_);
  size_t keys_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcake
