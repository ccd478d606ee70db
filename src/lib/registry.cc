#include "lib/registry.h"

#include <pthread.h>

#include <atomic>
#include <utility>

namespace kvcake {
namespace {

std::atomic<Registry*> of_process = nullptr;

}  // namespace

uint64_t LibraryId::Encode() const {
  return static_cast<uint64_t>(forks) << (kCacheBits + kPartBits) |
         static_cast<uint64_t>(cache) << kPartBits | part;
}

LibraryId LibraryId::Decode(uint64_t id) {
  return {.forks = static_cast<uint32_t>(id >> (kCacheBits + kPartBits)),
          .cache = static_cast<uint32_t>(id >> kPartBits & ((1u << kCacheBits) - 1)),
          .part = id & ((1ull << kPartBits) - 1)};
}

Registry& Registry::Get() {
  static const bool made = [] {
    of_process = new Registry(0, nullptr);
    pthread_atfork(nullptr, nullptr, AfterFork);
    return true;
  }();
  static_cast<void>(made);
  return *of_process;
}

// In the child's only thread.
void Registry::AfterFork() {
  Registry* const parent = of_process;
  of_process = new Registry((parent->forks_ + 1) % (1u << LibraryId::kForkBits), parent);
}

Result<uint32_t> Registry::Add(std::unique_ptr<Cache> cache) {
  constexpr uint32_t kMax = (1u << LibraryId::kCacheBits) - 1;
  MutexLock lock(mutex_);
  if (last_number_ == kMax) {
    return Fail(ErrorCode::kResourceExhausted, "a process opens {} caches at most", kMax);
  }
  caches_[++last_number_].cache = std::move(cache);
  return last_number_;
}

tl::expected<Registry::Use, NoCache> Registry::Find(const LibraryId& id) {
  if (id.cache == 0) return tl::unexpected(NoCache::kUnknown);
  if (id.forks != forks_) return tl::unexpected(NoCache::kForked);
  MutexLock lock(mutex_);
  const auto it = caches_.find(id.cache);
  if (it == caches_.end()) return tl::unexpected(NoCache::kUnknown);
  ++it->second.uses;
  return Use(this, id.cache, it->second.cache.get());
}

tl::expected<Registry::Removed, NoCache> Registry::Remove(const LibraryId& id) {
  if (id.cache == 0 || id.part != 0) return tl::unexpected(NoCache::kUnknown);
  if (id.forks != forks_) return tl::unexpected(NoCache::kForked);
  MutexLock lock(mutex_);
  const auto it = caches_.find(id.cache);
  if (it == caches_.end()) return tl::unexpected(NoCache::kUnknown);
  if (it->second.uses > 0 || it->second.cache->acquired() > 0) return Removed();
  return caches_.extract(it);
}

void Registry::Keep(Removed removed) {
  MutexLock lock(mutex_);
  kept_.insert(std::move(removed));
}

void Registry::EndUse(uint32_t number) {
  MutexLock lock(mutex_);
  --caches_.at(number).uses;
}

}  // namespace kvcake
