#include "engine/tenant_pages.h"

#include <vector>

namespace kvcake {

void TenantPages::Note(const std::string& tenant, std::span<const ChunkKey> keys) {
  if (tenant.empty()) return;
  MutexLock lock(mutex_);
  std::unordered_set<ChunkKey>& own = by_tenant_[tenant];
  for (const ChunkKey& key : keys) keys_ += own.insert(key).second ? 1 : 0;
  if (keys_ > 2 * pool_.pages()) ForgetEvicted();
}

void TenantPages::Drop(const std::string& tenant) {
  MutexLock lock(mutex_);
  const auto it = by_tenant_.find(tenant);
  if (it == by_tenant_.end()) return;
  pool_.DropCached(std::vector<ChunkKey>(it->second.begin(), it->second.end()));
  ForgetEvicted();  // but for those that are in use
}

size_t TenantPages::keys() const {
  MutexLock lock(mutex_);
  return keys_;
}

void TenantPages::ForgetEvicted() {
  keys_ = 0;
  for (auto it = by_tenant_.begin(); it != by_tenant_.end();) {
    std::erase_if(it->second, [this](const ChunkKey& key) { return !pool_.Contains(key); });
    keys_ += it->second.size();
    it = it->second.empty() ? by_tenant_.erase(it) : std::next(it);
  }
}

}  // namespace kvcake
