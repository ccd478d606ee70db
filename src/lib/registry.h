// The caches of a process, by the numbers that its callers know them by.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "lib/cache.h"

namespace kvcake {

// What a number given to a caller says: which cache, and what of it (0: the cache itself).
struct LibraryId {
  static constexpr int kForkBits = 6, kCacheBits = 16, kPartBits = 42;

  uint32_t forks = 0;  // before the process that gave it out
  uint32_t cache = 0;
  uint64_t part = 0;

  uint64_t Encode() const;
  static LibraryId Decode(uint64_t id);
};

enum class NoCache { kUnknown, kForked };

// Thread-safe. A child of fork has a registry of its own, empty: nothing of its parent's is
// touched, whose locks may be held by threads that the child does not have.
class Registry {
 public:
  // A cache that is not closed while this lives.
  class Use {
   public:
    Use(Registry* registry, uint32_t number, Cache* cache)
        : registry_(registry), number_(number), cache_(cache) {}
    Use(Use&& other) noexcept
        : registry_(std::exchange(other.registry_, nullptr)),
          number_(other.number_),
          cache_(other.cache_) {}
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (registry_ != nullptr) registry_->EndUse(number_);
    }
    Cache& cache() const { return *cache_; }
    uint32_t number() const { return number_; }

   private:
    Registry* registry_;
    uint32_t number_;
    Cache* cache_;
  };

  // This process's; never destroyed, as threads may call as it ends.
  static Registry& Get();

  uint32_t forks() const { return forks_; }
  // kResourceExhausted after 65,535 caches.
  Result<uint32_t> Add(std::unique_ptr<Cache> cache);
  tl::expected<Use, NoCache> Find(const LibraryId& id);
  struct Entry {
    std::unique_ptr<Cache> cache;
    uint32_t uses = 0;
  };
  using Removed = std::map<uint32_t, Entry>::node_type;
  // A cache that nobody uses and of which no chunk is acquired, for the caller to destroy; empty
  // where somebody does.
  tl::expected<Removed, NoCache> Remove(const LibraryId& id);
  // Keeps one that is in no state to be destroyed; nobody finds it.
  void Keep(Removed removed) EXCLUDES(mutex_);

 private:
  Registry(uint32_t forks, Registry* before) : forks_(forks), before_(before) {}
  static void AfterFork();
  void EndUse(uint32_t number) EXCLUDES(mutex_);

  // Constant after construction.
  const uint32_t forks_;
  [[maybe_unused]] Registry* const before_;  // the parent's, for leak checkers

  Mutex mutex_;
  uint32_t last_number_ GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, Entry> caches_ GUARDED_BY(mutex_);
  std::map<uint32_t, Entry> kept_ GUARDED_BY(mutex_);
};

}  // namespace kvcake
